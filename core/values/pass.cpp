#include "core/values/pass.h"

#include "core/base/posix.h"
#include "core/recipe/fetch_missing.h"

#include <algorithm>
#include <cerrno>
#include <exception>
#include <mutex>
#include <vector>

namespace stfs {
namespace {

class Pass {
 public:
  Pass(const Content& content, std::uint64_t block_bytes, const PassOptions& options,
       const std::function<void(const PassBlock&)>& work)
      : content_(content),
        block_bytes_(block_bytes),
        options_(options),
        work_(work),
        is_here_(is_here(content)),
        in_order_(content, &options.stop) {}

  // The loop of one thread.
  void run(unsigned thread) noexcept {
    try {
      std::vector<std::byte> buffer(
          static_cast<std::size_t>(std::min(block_bytes_, content_.size())));
      PassBlock block{0, {}, thread};
      while (read(buffer, block)) {
        work_(block);
        if (options_.progress) options_.progress(block.bytes.size());
      }
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (!exception_) exception_ = std::current_exception();
      ended_ = true;
    }
  }

  int result() const {
    if (exception_) std::rethrow_exception(exception_);
    const int changed = error_ == EINTR ? 0 : content_.verify();
    return changed != 0 ? changed : error_;
  }

 private:
  // Reads the next block that no thread has taken. Returns false at the end or after an error.
  bool read(std::span<std::byte> buffer, PassBlock& block) {
    std::unique_lock lock(mutex_);
    if (error_ == 0 && options_.stop.load(std::memory_order_relaxed)) error_ = EINTR;
    block.index = next_;
    const std::uint64_t offset = next_ * block_bytes_;
    if (ended_ || error_ != 0 || offset >= content_.size()) return false;
    ++next_;
    const std::span<std::byte> bytes =
        buffer.first(static_cast<std::size_t>(std::min(block_bytes_, content_.size() - offset)));
    block.bytes = bytes;
    int error = 0;
    if (is_here_) {
      lock.unlock();
      error = fetch_and_copy(content_, offset, bytes, &options_.stop);
      if (error == 0) return true;
      lock.lock();
    } else {
      error = in_order_.copy_unverified(offset, bytes);  // fetches the next bytes in advance
    }
    if (error != 0 && error_ == 0) error_ = error;
    return error == 0;
  }

  const Content& content_;
  const std::uint64_t block_bytes_;
  const PassOptions& options_;
  const std::function<void(const PassBlock&)>& work_;
  const bool is_here_;  // if true, threads read at the same time

  std::mutex mutex_;
  SequentialReader in_order_;
  std::uint64_t next_ = 0;  // the number of the next block
  bool ended_ = false;
  int error_ = 0;
  std::exception_ptr exception_;
};

}  // namespace

// Checks one part at a time, because a slice may have many missing ranges.
bool is_here(const Content& content) {
  constexpr std::uint64_t kPart = 4 << 20;  // bytes
  for (std::uint64_t offset = 0; offset < content.size(); offset += kPart) {
    if (!content.missing(offset, kPart).empty()) return false;
  }
  return true;
}

int pass_over(const Content& content, std::uint64_t block_bytes, const PassOptions& options,
              const std::function<void(const PassBlock&)>& work) {
  constexpr std::uint64_t kBlocksEach = 4;  // fewer would be done before another thread has started
  const std::uint64_t blocks = (content.size() + block_bytes - 1) / block_bytes;
  const auto threads = static_cast<unsigned>(
      std::clamp<std::uint64_t>(blocks / kBlocksEach, 1, std::max(1U, options.threads)));
  Pass pass(content, block_bytes, options, work);
  on_threads(threads, [&pass](std::size_t i) { pass.run(static_cast<unsigned>(i)); });
  return pass.result();
}

}  // namespace stfs
