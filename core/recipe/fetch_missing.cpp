#include "core/recipe/fetch_missing.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <new>

namespace stfs {
namespace {

// The steps of a reader are multiples of this size. If a reader begins at an element, each step
// therefore contains whole elements of every type that a producer computes.
constexpr std::uint64_t kElement = 8;  // bytes

constexpr std::uint64_t kFirst = 1 << 20;        // bytes of the first request of several
constexpr std::uint64_t kPrefetched = 32 << 20;  // maximum bytes of the later requests

std::uint64_t block_of(std::uint64_t offset) { return offset / Source::kFetchUnit; }
std::uint64_t last_block(const Extent& extent) {
  return block_of(extent.offset + extent.length - 1);
}

// Returns the parts of extents in blocks that are not local. Joins adjacent parts.
std::vector<Extent> absent_parts(const std::vector<Extent>& extents) {
  std::vector<Extent> absent;
  for (const Extent& extent : extents) {
    for (std::uint64_t done = 0; done < extent.length;) {
      const std::uint64_t begin = extent.offset + done;
      const Extent block = extent.part(done, Source::kFetchUnit - begin % Source::kFetchUnit);
      done += block.length;
      if (block.source->has({block.offset, block.length})) continue;
      Extent* const last = absent.empty() ? nullptr : &absent.back();
      if (last != nullptr && last->source == block.source &&
          last->offset + last->length == block.offset) {
        last->length += block.length;
      } else {
        absent.push_back(block);
      }
    }
  }
  return absent;
}

// Reduces `extents` to their first kFirst bytes, and returns the rest.
std::vector<Extent> all_but_first(std::vector<Extent>& extents) {
  std::vector<Extent> later;
  std::uint64_t most = kFirst;
  for (Extent& extent : extents) {
    const Extent first = extent.part(0, most);
    if (first.length < extent.length) later.push_back(extent.part(first.length, extent.length));
    extent = first;
    most -= first.length;
  }
  std::erase_if(extents, [](const Extent& extent) { return extent.length == 0; });
  return later;
}

// Counts the ranges that have arrived. The waiter shares it with the callbacks of sources, because
// a source may call back after the waiter has given up.
class Waiting {
 public:
  explicit Waiting(std::size_t ranges) : left_(ranges) {}

  void arrived(int error) {
    const std::lock_guard lock(mutex_);
    if (error != 0) error_ = error;
    if (--left_ == 0) all_.notify_all();
  }

  int wait(const std::atomic<bool>* stop) {
    // The interval of checking `stop`, because setting it does not notify all_.
    constexpr std::chrono::milliseconds kLook{50};
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

std::uint64_t bytes_of(const std::vector<Extent>& extents) {
  std::uint64_t bytes = 0;
  for (const Extent& extent : extents) bytes += extent.length;
  return bytes;
}

// Calls Source::prefetch() for the first kPrefetched bytes of `later`.
void prefetch(const std::vector<Extent>& later) {
  std::uint64_t most = kPrefetched;
  for (const Extent& extent : later) {
    if (most == 0) return;
    const Extent part = extent.part(0, most);
    part.source->prefetch({part.offset, part.length});
    most -= part.length;
  }
}

// Fetches and copies a range. Sets `lost` to true if fetched bytes were evicted before they were
// copied.
int arrive_and_copy(const Content& content, std::uint64_t offset, std::span<std::byte> out,
                    const std::atomic<bool>* stop, bool& lost) {
  Steps steps(offset, out.size());
  std::vector<Extent> missing;
  int error = 0;
  while (error == 0 && (error = steps.look(content, missing)) == 0 && !steps.is_done()) {
    const ByteRange next = steps.next();
    error = missing.empty()
                ? steps.copied(content.copy_unverified(
                      next.offset, out.subspan(static_cast<std::size_t>(next.offset - offset),
                                               static_cast<std::size_t>(next.length))))
                : fetch(missing, stop);
  }
  lost = steps.has_lost();
  return error == 0 && steps.all().length != out.size() ? EIO : error;
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
                                 std::uint64_t& length, std::uint64_t most,
                                 std::vector<Extent>* later) {
  constexpr std::uint64_t kAligned = 64;  // bytes; lengths above it are reduced to a multiple
  while (true) {
    std::vector<Extent> missing = content.missing(offset, length);
    const std::uint64_t bytes = missing.empty() ? 0 : join(missing);
    if (bytes <= most) return missing;
    if (length <= kElement) {
      if (later == nullptr) return missing;
      missing = absent_parts(missing);
      *later = all_but_first(missing);
      return missing;
    }
    // Assume that the missing bytes are spread evenly, and at least halve the length.
    const auto share = static_cast<std::uint64_t>(
        static_cast<double>(length) * static_cast<double>(most) / static_cast<double>(bytes));
    length = std::max(kElement, std::min(share, length / 2));
    length -= length % (length > kAligned ? kAligned : kElement);
  }
}

int Steps::lose() {
  if (++lost_ > Source::kMaxLost) return EIO;
  has_lost_ = true;
  take_ = take_ >= 2 * kElement ? take_ / 2 / kElement * kElement
                                : std::max<std::uint64_t>(1, take_ / 2);
  return 0;
}

int Steps::look(const Content& content, std::vector<Extent>& missing) {
  missing.clear();
  length_ = std::min(length_, content.size() - std::min(begin_, content.size()));
  if (is_done()) return 0;
  std::vector<Extent> later;
  const auto ask = [&] {
    take_ = std::min(take_, begin_ + length_ - at_);
    later.clear();
    missing = missing_part(content, at_, take_, kMaxMissing, &later);
    return bytes_of(missing) + bytes_of(later);
  };
  std::uint64_t bytes = ask();
  if (bytes >= missing_) {
    if (const int error = lose()) return error;
    bytes = ask();
  }
  missing_ = bytes;
  prefetch(later);
  return 0;
}

int Steps::copied(int error) {
  missing_ = std::numeric_limits<std::uint64_t>::max();
  if (error == EAGAIN) return lose();
  if (error != 0) return error;
  lost_ = 0;
  at_ += take_;
  take_ *= 2;  // because the next bytes may be closer together
  return 0;
}

void prefetch_content(const Content& content, std::uint64_t offset, std::uint64_t length,
                      std::uint64_t most) {
  constexpr std::uint64_t kPiece = 4 << 20;  // bytes of the recipe that are checked at a time
  if (offset >= content.size()) return;
  const std::uint64_t end = offset + std::min(length, content.size() - offset);
  while (offset < end && most > 0) {
    std::uint64_t piece = std::min(kPiece, end - offset);
    for (const Extent& extent : missing_part(content, offset, piece, std::max(most, kMaxMissing))) {
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
  // The source keeps fewer bytes than are fetched ahead, so it would fetch everything twice.
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
