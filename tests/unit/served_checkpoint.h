// A file system over a checkpoint on disk, without a mount. Not safe to share between threads.
#pragma once

#include "fs/mount/filesystem.h"
#include "fs/view/registry.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/support/files.h"
#include "tests/unit/most.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <functional>
#include <future>
#include <limits>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

namespace stfs::test {

inline constexpr std::uint64_t kRoot = 1;

struct Listed {
  std::string name;
  Attributes attributes;
  std::uint64_t next;
};

inline std::string bytes_of(const Reply& reply) {
  std::string bytes;
  for (const iovec& piece : reply.pieces()) {
    bytes.append(static_cast<const char*>(piece.iov_base), piece.iov_len);
  }
  return bytes;
}

// A checkpoint on disk and the file system over it.
class ServedCheckpoint {
 public:
  ServedCheckpoint(const std::vector<Tensor>& tensors, const FileSystemOptions& options = {},
                   const std::optional<Metadata>& metadata = std::nullopt)
      : ServedCheckpoint(std::vector<std::vector<Tensor>>(1, tensors), options, metadata) {}

  ServedCheckpoint(const std::vector<std::vector<Tensor>>& files, const FileSystemOptions& options,
                   const std::optional<Metadata>& metadata) {
    std::vector<std::string> sources;
    for (const std::vector<Tensor>& tensors : files) {
      paths_.push_back((dir_ / ("s" + std::to_string(paths_.size()) + ".safetensors")).string());
      write_safetensors(paths_.back(), tensors, metadata);
      const auto seconds = 1'000'000'000 + static_cast<std::time_t>(paths_.size());
      const timespec times[2]{{seconds, 7}, {seconds, 7}};
      ::utimensat(AT_FDCWD, paths_.back().c_str(), times, 0);
    }
    checkpoint_ = std::make_unique<const Checkpoint>(paths_);
    filesystem_ = std::make_unique<FileSystem>(
        *checkpoint_, options, [this](const std::string& line) { log.push_back(line); });
  }

  FileSystem* operator->() const { return filesystem_.get(); }
  const Checkpoint& checkpoint() const { return *checkpoint_; }
  const std::string& source(std::size_t number = 0) const { return paths_[number]; }

  // Returns the attributes of a path relative to the root, such as "" or ".stfs/info.json".
  std::optional<Attributes> at(const std::string& path) const {
    std::optional<Attributes> found = filesystem_->attributes(kRoot);
    std::istringstream components(path);
    for (std::string component; found && std::getline(components, component, '/');) {
      const std::uint64_t directory = found->inode;
      if (look_up(directory, component, *found) != 0) found = std::nullopt;
    }
    return found;
  }
  // Returns 0 or an errno.
  int look_up(std::uint64_t directory, std::string_view name, Attributes& found) const {
    return filesystem_->lookup(directory, name, found);
  }
  int look_up(std::uint64_t directory, std::string_view name) const {
    Attributes found{};
    return look_up(directory, name, found);
  }
  std::uint64_t inode(const std::string& path) const {
    const auto found = at(path);
    EXPECT_TRUE(found) << path;
    return found ? found->inode : 0;
  }

  std::vector<Listed> list(std::uint64_t directory, std::uint64_t offset = 0) const {
    std::vector<Listed> out;
    EXPECT_EQ(filesystem_->list(directory, offset,
                                [&](const FileSystem::Entry& entry) {
                                  const auto attributes = filesystem_->attributes(entry.inode);
                                  EXPECT_TRUE(attributes) << entry.name;
                                  if (!attributes) return false;
                                  EXPECT_EQ(attributes->mode & S_IFMT, entry.type) << entry.name;
                                  out.push_back({entry.name, *attributes, entry.next_offset});
                                  return true;
                                }),
              0);
    return out;
  }
  std::vector<std::string> names(const std::string& path) const {
    std::vector<std::string> out;
    for (const Listed& entry : list(inode(path))) out.push_back(entry.name);
    EXPECT_GE(out.size(), 2U);
    return {out.begin() + 2, out.end()};
  }

  // Appends the bytes to `out`. Waits for computed bytes. Returns 0 or an errno.
  int read(std::uint64_t inode, std::uint64_t offset, std::uint64_t length,
           std::string& out) const {
    const bool is_computed = std::ranges::any_of(all_views(), [&](const ViewSpec& view) {
      return view.id == node_of(inode).view && view.compute != nullptr;
    });
    std::promise<int> answer;  // a second answer throws and ends the test
    std::future<int> answered = answer.get_future();
    filesystem_->read(
        {inode, offset, length},
        [&](FileSystem::Ticket) { EXPECT_TRUE(is_computed) << "stored bytes need no waiting"; },
        [&](int error, const Reply& reply) {
          out += bytes_of(reply);
          answer.set_value(error);
        });
    return answered.get();
  }
  std::string text(const std::string& path) const {
    std::string out;
    EXPECT_EQ(read(inode(path), 0, kMost, out), 0) << path;
    return out;
  }
  std::string xattr(const std::string& path, const std::string& name) const {
    std::string value;
    EXPECT_EQ(filesystem_->get_xattr(inode(path), name, value), 0) << path << " " << name;
    return value;
  }

  // Calls visit(path, attributes) for every entry below a directory.
  using Visit = std::function<void(const std::string&, const Attributes&)>;
  void walk(const std::string& path, const Visit& visit) const {
    for (const Listed& entry : list(inode(path))) {
      if (entry.name == "." || entry.name == "..") continue;
      const std::string below = path.empty() ? entry.name : path + "/" + entry.name;
      visit(below, entry.attributes);
      if (S_ISDIR(entry.attributes.mode)) walk(below, visit);
    }
  }
  // Also visits paths that the root does not list.
  void walk_all(const Visit& visit) const {
    walk("", visit);
    if (const auto control = at(".stfs")) {
      visit(".stfs", *control);
      walk(".stfs", visit);
    }
  }

  std::vector<std::string> log;

 private:
  TempDir dir_;
  std::vector<std::string> paths_;
  std::unique_ptr<const Checkpoint> checkpoint_;
  std::unique_ptr<FileSystem> filesystem_;
};

// Names of every kind.
inline std::vector<Tensor> many() {
  return {{"w", "F32", {2, 1}, "12345678"}, {"layers/0/q", "BF16", {2}, "abcd"},
          {"layers/1/q", "U8", {}, "x"},    {"layers", "U8", {1}, "y"},
          {"empty", "F16", {0, 3}, ""},     {"", "U8", {1}, "z"},
          {"\t\u00e9", "U8", {1}, "t"},     {"a", "U8", {1}, "1"},
          {"a.json/b", "U8", {2}, "23"},    {"%", "I64", {1}, "01234567"}};
}

inline const std::vector<std::string> kXattrNames{
    "user.stfs.name",   "user.stfs.dtype",  "user.stfs.shape",  "user.stfs.source",
    "user.stfs.offset", "user.stfs.length", "user.stfs.version"};

}  // namespace stfs::test
