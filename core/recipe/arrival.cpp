#include "core/recipe/arrival.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <new>

namespace stfs {
namespace {

// How often the same bytes may go away before they were read.
constexpr unsigned kMostLost = 16;

// Parts that are read one after the other are multiples of this: a reader that begins at an element
// has whole elements of every type that a production makes.
constexpr std::uint64_t kElement = 8;  // bytes

std::uint64_t block_of(std::uint64_t offset) { return offset / Source::kFetchUnit; }
std::uint64_t last_block(const Extent& extent) {
  return block_of(extent.offset + extent.length - 1);
}

// Counts what arrives. Shared with the callbacks of sources, which may come after the waiter left.
class Waiting {
 public:
  explicit Waiting(std::size_t ranges) : left_(ranges) {}

  void arrived(int error) {
    const std::lock_guard lock(mutex_);
    if (error != 0) error_ = error;
    if (--left_ == 0) all_.notify_all();
  }

  int wait(const std::atomic<bool>* stop) {
    constexpr std::chrono::milliseconds kLook{50};  // nobody notifies when `stop` is set
    std::unique_lock lock(mutex_);
    while (!all_.wait_for(lock, kLook, [this] { return left_ == 0; })) {
      if (stop != nullptr && stop->load(std::memory_order_acquire)) return EINTR;
    }
    return error_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable all_;
  std::size_t left_;
  int error_ = 0;
};

// Sets `lost` when bytes that had come were gone again.
int arrive_and_copy(const Content& content, std::uint64_t offset, std::span<std::byte> out,
                    const std::atomic<bool>* stop, bool& lost) {
  unsigned rounds = 0;
  while (!out.empty()) {
    std::uint64_t length = out.size();
    if (rounds > 1 && length > kElement) {
      length = std::max(kElement, (length >> (rounds - 1)) / kElement * kElement);
    }
    const std::vector<Extent> missing = missing_part(content, offset, length);
    int error = 0;
    if (!missing.empty()) {
      lost = lost || rounds > 0;
      if (++rounds > kMostLost) return EIO;
      error = fetch(missing, stop);
      if (error != 0) return error;
    }
    const auto take = static_cast<std::size_t>(length);
    error = content.copy_unverified(offset, out.first(take));
    if (error == EAGAIN) {
      lost = true;
      if (++rounds > kMostLost) return EIO;
      continue;
    }
    if (error != 0) return error;
    rounds = 0;
    out = out.subspan(take);
    offset += take;
  }
  return 0;
}

}  // namespace

int fetch(const std::vector<Extent>& missing, const std::atomic<bool>* stop) {
  const auto waiting = std::make_shared<Waiting>(missing.size());
  for (const Extent& extent : missing) {
    try {
      extent.source->want({extent.offset, extent.length},
                          [waiting](int error) { waiting->arrived(error); });
    } catch (const std::bad_alloc&) {
      waiting->arrived(ENOMEM);
    }
  }
  return waiting->wait(stop);
}

std::uint64_t join(std::vector<Extent>& extents) {
  std::ranges::sort(extents, [](const Extent& a, const Extent& b) {
    if (a.source != b.source) return std::less<>()(a.source, b.source);
    return a.offset < b.offset;
  });
  std::uint64_t blocks = 0;
  std::size_t kept = 0;
  for (const Extent& extent : extents) {
    if (kept > 0) {
      Extent& last = extents[kept - 1];
      if (last.source == extent.source && block_of(extent.offset) <= last_block(last) + 1) {
        const std::uint64_t before = last_block(last);
        last.length =
            std::max(last.offset + last.length, extent.offset + extent.length) - last.offset;
        blocks += last_block(last) - before;
        continue;
      }
    }
    extents[kept++] = extent;
    blocks += last_block(extent) - block_of(extent.offset) + 1;
  }
  extents.resize(kept);
  return blocks * Source::kFetchUnit;
}

std::vector<Extent> missing_part(const Content& content, std::uint64_t offset,
                                 std::uint64_t& length, std::uint64_t most) {
  constexpr std::uint64_t kAligned = 64;  // bytes: whole elements, where there are so many
  while (true) {
    std::vector<Extent> missing = content.missing(offset, length);
    const std::uint64_t bytes = missing.empty() ? 0 : join(missing);
    if (bytes <= most || length <= kElement) return missing;
    // Assume that they are spread evenly, and at least halve.
    const auto share = static_cast<std::uint64_t>(
        static_cast<double>(length) * static_cast<double>(most) / static_cast<double>(bytes));
    length = std::max(kElement, std::min(share, length / 2));
    length -= length % (length > kAligned ? kAligned : kElement);
  }
}

void prefetch_content(const Content& content, std::uint64_t offset, std::uint64_t length,
                      std::uint64_t most) {
  constexpr std::uint64_t kPiece = 4 << 20;  // bytes of the recipe, looked at in one go
  if (offset >= content.size()) return;
  const std::uint64_t end = offset + std::min(length, content.size() - offset);
  while (offset < end && most > 0) {
    std::uint64_t piece = std::min(kPiece, end - offset);
    for (const Extent& extent : missing_part(content, offset, piece)) {
      extent.source->prefetch({extent.offset, extent.length});
      most -= std::min(most, extent.length);
    }
    offset += piece;
  }
}

void SequentialReader::fetch_ahead(std::uint64_t offset) {
  asked_ = std::max(asked_, offset);
  if (asked_ >= content_.size() || asked_ > offset + kAhead / 2) return;
  prefetch_content(content_, asked_, offset + kAhead - asked_, kAhead);
  asked_ = offset + kAhead;
}

int SequentialReader::copy_unverified(std::uint64_t offset, std::span<std::byte> out) {
  bool lost = false;
  if (fetches_ahead_) fetch_ahead(offset);
  const int error = arrive_and_copy(content_, offset, out, stop_, lost);
  // The source keeps less than what is fetched ahead: it would fetch everything twice.
  if (lost) fetches_ahead_ = false;
  return error;
}

int SequentialReader::copy(std::uint64_t offset, std::span<std::byte> out) {
  const int error = copy_unverified(offset, out);
  const int changed = content_.verify(offset, out.size());
  return changed != 0 ? changed : error;
}

int fetch_and_copy(const Content& content, std::uint64_t offset, std::span<std::byte> out,
                   const std::atomic<bool>* stop) {
  bool lost = false;
  return arrive_and_copy(content, offset, out, stop, lost);
}

}  // namespace stfs
