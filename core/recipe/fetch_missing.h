// Fetches the bytes of a recipe that are not local: decides which bytes to fetch next, and has a
// reader that waits for them.
//
// The memory of a reader is bounded, even if its bytes are far apart: the bytes of a column may be
// in all blocks of a large matrix. A reader fetches a part whose missing blocks have at most
// kMaxMissing bytes, uses it after it has arrived, and continues with the next part.
//
// Thread safety: the functions may be called from any thread; the classes say what holds for them.
#pragma once

#include "core/recipe/content.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace stfs {

// The maximum number of bytes, in whole blocks, that a reader fetches at a time.
inline constexpr std::uint64_t kMaxMissing = 8 << 20;

// Sorts extents by source and offset, and joins extents of a source if they are in the same block
// of Source::kFetchUnit bytes or in neighbouring blocks. Returns the number of bytes of all blocks
// that contain bytes of the extents.
std::uint64_t join(std::vector<Extent>& extents);

// Returns the missing extents, joined, of the first bytes of [offset, offset + length). Reduces
// `length` until their blocks have at most `most` bytes, or `length` is at most 8. Returns an empty
// list if all bytes of the reduced range are local.
//
// Even 8 bytes may need more than `most` bytes, for instance in a tensor that is verified as a
// whole. If `later` is not null, the function then returns only the first 1 MiB of the missing
// bytes, and sets `later` to the rest. Fetch the rest after the first bytes have arrived, so that
// each request has its own deadline.
std::vector<Extent> missing_part(const Content& content, std::uint64_t offset,
                                 std::uint64_t& length, std::uint64_t most = kMaxMissing,
                                 std::vector<Extent>* later = nullptr);

// The steps in which one reader reads [begin, begin + length) of a recipe. If fetched bytes were
// evicted before the reader copied them, the next step is half as long. After more than
// Source::kMaxLost such steps in a row the reader fails with EIO. A step is not counted if fewer
// bytes are missing than before it, as in a tensor that is verified as a whole, which needs several
// fetches.
//
// Thread safety: one thread at a time.
class Steps {
 public:
  Steps(std::uint64_t begin, std::uint64_t length) : begin_(begin), at_(begin), length_(length) {}

  // Sets `missing` to the extents that have to be fetched next. Fetch them and call look() again.
  // If `missing` is empty and is_done() is false, copy the range next(). Cuts the reader's range at
  // the end of the recipe. Returns 0, or EIO after too many lost steps. Starts to prefetch bytes
  // that later calls will return as missing.
  int look(const Content& content, std::vector<Extent>& missing);
  ByteRange next() const { return {at_, take_}; }
  // Takes the result of copying next(), 0 or an errno. Returns 0 if the reader should continue, or
  // the errno of the whole read. EAGAIN means that bytes were evicted.
  int copied(int error);

  ByteRange all() const { return {begin_, length_}; }
  bool is_done() const { return at_ - begin_ == length_; }
  bool has_lost() const { return has_lost_; }  // fetched bytes were evicted before they were read

 private:
  int lose();

  std::uint64_t begin_, at_, length_;
  std::uint64_t take_ = std::numeric_limits<std::uint64_t>::max();     // bytes of the next step
  std::uint64_t missing_ = std::numeric_limits<std::uint64_t>::max();  // bytes, at the last look()
  unsigned lost_ = 0;                                                  // lost steps in a row
  bool has_lost_ = false;
};

// Fetches these bytes and waits for them. Returns 0, the errno of Source::want(), or EINTR soon
// after `stop` is set; `stop` may be null. Call it only on a thread that may wait.
int fetch(const std::vector<Extent>& missing, const std::atomic<bool>* stop = nullptr);

// Calls Source::prefetch() for the missing bytes of a range, until about `most` bytes of blocks
// were requested. Does not wait.
void prefetch_content(const Content& content, std::uint64_t offset, std::uint64_t length,
                      std::uint64_t most = std::uint64_t{64} << 20);

// Reads a recipe from its beginning to its end, on a thread that may wait. Fetches up to 32 MiB of
// the recipe ahead, and waits until the next bytes are local. If no bytes are missing, it costs
// only the check for missing bytes.
//
// Thread safety: one thread at a time. Lifetime: the content and the stop flag must outlive it.
class SequentialReader {
 public:
  // The reader fails with EINTR soon after `stop` is set. `stop` may be null.
  explicit SequentialReader(const Content& content, const std::atomic<bool>* stop = nullptr)
      : content_(content), stop_(stop) {}

  // Fetch the missing bytes, then copy like the functions of Content with these names. Return 0 or
  // an errno, including the errnos of Source::want() and EINTR.
  int copy(std::uint64_t offset, std::span<std::byte> out);
  int copy_unverified(std::uint64_t offset, std::span<std::byte> out);

 private:
  static constexpr std::uint64_t kAhead = 32 << 20;  // bytes of the recipe

  void fetch_ahead(std::uint64_t offset);

  const Content& content_;
  const std::atomic<bool>* stop_;
  std::uint64_t asked_ = 0;    // the offset in the recipe up to which bytes were requested
  bool fetches_ahead_ = true;  // false after fetched bytes were evicted before they were read
};

// Fetches the missing bytes of a range, then copies it like Content::copy_unverified(). Returns 0
// or an errno; EINTR soon after `stop` is set. Call it only on a thread that may wait.
int fetch_and_copy(const Content& content, std::uint64_t offset, std::span<std::byte> out,
                   const std::atomic<bool>* stop = nullptr);

}  // namespace stfs
