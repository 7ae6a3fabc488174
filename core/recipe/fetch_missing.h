// Bytes of a recipe that are not on this machine: which to ask for next, and a reader that waits
// for them.
//
// Memory stays bounded however far apart the bytes lie (a column of a large matrix may touch all of
// it): a reader asks for a part whose missing blocks are at most kMaxMissing bytes, uses it when
// it has come, and goes on.
#pragma once

#include "core/recipe/content.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace stfs {

inline constexpr std::uint64_t kMaxMissing = 8 << 20;  // bytes of blocks, asked for at a time

// Sorts extents, and joins those that lie in the same block of Source::kFetchUnit or in
// neighbouring ones. Returns the bytes of the blocks that they touch.
std::uint64_t join(std::vector<Extent>& extents);

// The missing extents of the beginning of [offset, offset + length), joined. Makes `length` smaller
// until the blocks are at most `most` bytes, or 8 bytes are left. Empty: all of `length` is here.
// Where 8 bytes need more (a tensor that is checked as a whole), `later` gets all but the first of
// these extents: ask for them when the first have come, so that each request has its own deadline.
std::vector<Extent> missing_part(const Content& content, std::uint64_t offset,
                                 std::uint64_t& length, std::uint64_t most = kMaxMissing,
                                 std::vector<Extent>* later = nullptr);

// The steps of one reader through [begin, begin + length) of a recipe. Bytes that went away before
// it read them are asked for again, half as many; after Source::kMaxLost times in a row the reader
// gives up with EIO. Where less is missing each time (a tensor that is checked as a whole), nothing
// is lost. Thread safety: one thread at a time.
class Steps {
 public:
  Steps(std::uint64_t begin, std::uint64_t length) : begin_(begin), at_(begin), length_(length) {}

  // Fills `missing` with what must come next: fetch it, and look again. Empty: copy next(), unless
  // is_done(). Cuts the range at the end of the recipe. 0, or EIO.
  int look(const Content& content, std::vector<Extent>& missing);
  ByteRange next() const { return {at_, take_}; }
  // Says how copying next() ended: 0 to go on, or the errno.
  int copied(int error);

  ByteRange all() const { return {begin_, length_}; }
  bool is_done() const { return at_ - begin_ == length_; }
  bool has_lost() const { return has_lost_; }  // bytes went away

 private:
  int lose();

  std::uint64_t begin_, at_, length_;
  std::uint64_t take_ = std::numeric_limits<std::uint64_t>::max();     // bytes to try next
  std::uint64_t missing_ = std::numeric_limits<std::uint64_t>::max();  // bytes, at the last look
  unsigned lost_ = 0;                                                  // times in a row
  bool has_lost_ = false;
};

// Waits until these bytes are here: 0, the errno of Source::want(), or EINTR soon after `stop` is
// set. For a thread that may wait.
int fetch(const std::vector<Extent>& missing, const std::atomic<bool>* stop = nullptr);

// Source::prefetch() of what is missing in a range, up to some `most` bytes of blocks. Waits for
// nothing.
void prefetch_content(const Content& content, std::uint64_t offset, std::uint64_t length,
                      std::uint64_t most = std::uint64_t{64} << 20);

// Reads a recipe from its beginning to its end on a thread that may wait: fetches ahead, and blocks
// until the next bytes are here. While nothing is missing it costs the look for that.
//
// Thread safety: one thread at a time. Lifetime: content and stop flag outlive it.
class SequentialReader {
 public:
  // Gives up with EINTR soon after `stop` is set; null: never.
  explicit SequentialReader(const Content& content, const std::atomic<bool>* stop = nullptr)
      : content_(content), stop_(stop) {}

  // As the functions of Content do, once the bytes are here: 0 or an errno, those of Source::want()
  // and EINTR among them.
  int copy(std::uint64_t offset, std::span<std::byte> out);
  int copy_unverified(std::uint64_t offset, std::span<std::byte> out);

 private:
  static constexpr std::uint64_t kAhead = 32 << 20;  // bytes of the recipe

  void fetch_ahead(std::uint64_t offset);

  const Content& content_;
  const std::atomic<bool>* stop_;
  std::uint64_t asked_ = 0;    // the recipe's bytes before this were asked for
  bool fetches_ahead_ = true;  // until what had come went away before it was read
};

// Copies as Content::copy_unverified(), and fetches first what is missing: for threads of a tool.
int fetch_and_copy(const Content& content, std::uint64_t offset, std::span<std::byte> out,
                   const std::atomic<bool>* stop = nullptr);

}  // namespace stfs
