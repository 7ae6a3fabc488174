// Detects readers that read files in sequence, and predicts what they will read next.
//
// Each read of a file belongs to a stream if it begins near the end of the stream's previous read.
// It need not begin exactly there, because the kernel's readahead sends requests in parallel, and
// they arrive slightly out of order. A stream that has read in sequence prefetches a window ahead
// of the reader. The window doubles from kFirstWindow to kLargestWindow, and is extended when the
// reader has used half of it. It normally ends at the end of the file. If a reader has just read
// the previous tensor, it will probably read the next tensor too, so its window continues there.
//
// Random readers create streams of one read each, which prefetch nothing.
//
// Thread safety: all members may be called from any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <utility>

namespace stfs {

class ReadAhead {
 public:
  static constexpr std::uint64_t kFirstWindow = 1 << 20;     // bytes
  static constexpr std::uint64_t kLargestWindow = 64 << 20;  // bytes
  // The maximum number of streams. A new stream replaces the least recently used one.
  static constexpr std::size_t kStreams = 64;

  struct Piece {
    std::uint64_t file, offset, length;
  };
  // The functions are called on any thread. A file is identified by any number.
  struct Files {
    // Returns the size of a file in bytes.
    std::function<std::uint64_t(std::uint64_t file)> size;
    // Returns the file that a reader of all files reads next, or nullopt. Its number must be
    // greater.
    std::function<std::optional<std::uint64_t>(std::uint64_t file)> next;
    // Fetches a piece; called without a lock.
    std::function<void(const Piece& piece)> prefetch;
  };

  explicit ReadAhead(Files files) : files_(std::move(files)) {}
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

  // Records a read of [offset, offset + length), which may extend past the end of the file. Calls
  // Files::prefetch() without a lock. Allocates nothing if nothing is to be prefetched.
  void see(std::uint64_t file, std::uint64_t offset, std::uint64_t length);

 private:
  struct Stream {
    std::uint64_t file = 0;
    std::uint64_t size = 0;        // bytes of the file
    std::uint64_t position = 0;    // the end of the part that was read
    std::uint64_t used = 0;        // clock_ at its last read; 0: the stream is unused
    unsigned in_sequence = 0;      // reads in sequence, at most kTrusted
    bool follows = false;          // the reader has read the previous file before
    std::uint64_t window = 0;      // bytes; 0: nothing was prefetched
    std::uint64_t asked_file = 0;  // the file in which the next window begins
    std::uint64_t asked_offset = 0;
    std::uint64_t ahead = 0;  // bytes that were prefetched and that the reader has not reached
  };
  static constexpr unsigned kTrusted = 2;
  static constexpr std::size_t kPieces = 16;  // maximum number of files in one window
  struct Pieces {
    std::array<Piece, kPieces> all;
    std::size_t count = 0;
  };

  Stream* stream_of(std::uint64_t file, std::uint64_t offset, std::uint64_t length);
  Stream* stream_before(std::uint64_t file, std::uint64_t offset, std::uint64_t length);
  void begin(std::uint64_t file, std::uint64_t offset, std::uint64_t length);
  static void advance(Stream& stream, std::uint64_t offset, std::uint64_t length);
  void ask(Stream& stream, Pieces& pieces) const;

  const Files files_;
  std::mutex mutex_;
  std::uint64_t clock_ = 0;
  std::array<Stream, kStreams> streams_;
};

}  // namespace stfs
