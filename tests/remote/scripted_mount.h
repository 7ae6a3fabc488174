// A fixture with mounts of a server with scripted faults.
#pragma once

#include "tests/support/checkpoint_writer.h"
#include "tests/support/files.h"
#include "tests/support/http_server.h"
#include "tests/support/mounted.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace stfs::test {

inline constexpr std::uint64_t kFetchBlock = 256 << 10;  // bytes

// The byte range of a request. asked_range() returns nullopt for a request without a range.
struct AskedRange {
  std::uint64_t first, last;
  std::uint64_t length() const { return last - first + 1; }
};
inline std::optional<AskedRange> asked_range(const WebRequest& request) {
  const std::string range = request.header("range");
  const std::size_t dash = range.find('-');
  if (!range.starts_with("bytes=") || dash == std::string::npos) return std::nullopt;
  return AskedRange{std::stoull(range.substr(6)), std::stoull(range.substr(dash + 1))};
}

// Reads a part of a file into `out`. Returns 0 or the errno of open(2) or pread(2).
inline int read_part(const std::filesystem::path& path, std::uint64_t offset, std::size_t length,
                     std::string* out = nullptr, int flags = 0) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | flags);
  if (fd < 0) return errno;
  void* memory = nullptr;
  if (::posix_memalign(&memory, 4096, length + 1) != 0) std::abort();
  const ssize_t n = ::pread(fd, memory, length, static_cast<off_t>(offset));
  const int error = n < 0 ? errno : 0;
  if (out != nullptr && n >= 0)
    out->assign(static_cast<char*>(memory), static_cast<std::size_t>(n));
  std::free(memory);
  ::close(fd);
  return error;
}

class ScriptedMount : public MountTest {
 protected:
  // Returns a response that replaces the right one, or nullopt for the right one.
  using Fault = std::function<std::optional<WebAnswer>(const WebRequest&)>;

  ScriptedMount()
      : ScriptedMount({random_tensor("small", "U8", {16}, 1),
                       random_tensor("v", "F32", {512, 1024}, 2),
                       random_tensor("w", "BF16", {1024, 1024}, 3),
                       random_tensor("x", "U8", {2048, 1024}, 4)}) {}
  explicit ScriptedMount(std::vector<Tensor> tensors) : tensors_(std::move(tensors)) {
    write_safetensors(local(), tensors_);
    put("/m.safetensors", {.bytes = read_file(local())});
  }

  std::filesystem::path local() const { return dir_ / "m.safetensors"; }
  std::filesystem::path cache() const { return dir_ / "cache"; }
  std::string url() const { return server_.url("/m.safetensors"); }
  std::vector<std::string> options(const std::string& more = "") const {
    return {"-o", "cache_dir=" + cache().string() + (more.empty() ? "" : "," + more)};
  }
  const std::string& bytes_of(const std::string& name) const {
    for (const Tensor& tensor : tensors_) {
      if (tensor.name == name) return tensor.bytes;
    }
    throw std::invalid_argument(name);
  }
  // Returns the offset of a tensor in the object.
  std::uint64_t offset_of(const std::string& name) const {
    std::uint64_t offset = 0;
    for (const Tensor& tensor : tensors_) offset += tensor.bytes.size();
    const std::string object = read_file(local());
    offset = object.size() - offset;
    for (const Tensor& tensor : tensors_) {
      if (tensor.name == name) return offset;
      offset += tensor.bytes.size();
    }
    throw std::invalid_argument(name);
  }

  void put(const std::string& path, WebObject object) {
    const std::lock_guard lock(mutex_);
    objects_[path] = std::move(object);
  }
  WebAnswer right(const WebRequest& request) {
    const std::lock_guard lock(mutex_);
    return answer_object(request, objects_);
  }
  // Applies to the requests from now on.
  void set_fault(Fault fault) {
    const std::lock_guard lock(mutex_);
    fault_ = std::move(fault);
  }
  // Changes the right responses from now on.
  void set_change(const std::function<void(WebAnswer&)>& change) {
    set_fault([this, change](const WebRequest& request) {
      WebAnswer answer = right(request);
      change(answer);
      return std::optional(std::move(answer));
    });
  }
  // Makes the server accept requests and never answer.
  void fall_silent() {
    set_fault([](const WebRequest&) { return WebAnswer{.delay = std::chrono::hours(1)}; });
  }
  void mend() { set_fault(nullptr); }
  bool was_asked(std::size_t requests) const {
    return eventually([&] { return server_.requests().size() >= requests; });
  }
  // Returns how often each block of an object was requested.
  std::map<std::uint64_t, unsigned> asked_blocks(const std::string& path = "/m.safetensors") const {
    std::map<std::uint64_t, unsigned> asked;
    for (const WebRequest& request : server_.requests()) {
      const auto range = asked_range(request);
      if (request.target != path || !range) continue;
      for (std::uint64_t b = range->first / kFetchBlock; b <= range->last / kFetchBlock; ++b) {
        ++asked[b];
      }
    }
    return asked;
  }

  TempDir dir_;
  std::vector<Tensor> tensors_;
  mutable std::mutex mutex_;
  std::map<std::string, WebObject> objects_;
  Fault fault_;
  HttpServer server_{[this](const WebRequest& request) {
    Fault fault;
    {
      const std::lock_guard lock(mutex_);
      fault = fault_;
    }
    if (fault) {
      if (auto answer = fault(request)) return std::move(*answer);
    }
    return right(request);
  }};
};

inline void set_header(WebAnswer& answer, const std::string& name, const std::string& value) {
  std::erase_if(answer.headers, [&](const auto& header) { return header.first == name; });
  answer.headers.emplace_back(name, value);
}

}  // namespace stfs::test
