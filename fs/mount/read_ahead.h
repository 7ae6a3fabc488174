// Finds the readers that read files in sequence, and says what they will read next.
//
// Each read of a file belongs to a stream: the read before it ended near the place where it begins.
// Near, since the kernel's readahead sends requests in parallel, and they come slightly out of
// order. A stream that went on in sequence asks for a window ahead of the reader, which doubles
// from kFirstWindow to kLargestWindow, and asks again when the reader has used half of it. The
// window ends with the file. A reader that came from the previous tensor will probably go on to the
// next one, so its window goes on there.
//
// Random readers make streams of one read each, which ask for nothing.
//
// Thread safety: all members.
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
  static constexpr std::size_t kStreams = 64;                // the least recently used goes first

  struct Piece {
    std::uint64_t file, offset, length;
  };
  // Called on any thread. A file is any number.
  struct Files {
    std::function<std::uint64_t(std::uint64_t file)> size;
    // The file that a reader of all files takes next; a greater number.
    std::function<std::optional<std::uint64_t>(std::uint64_t file)> next;
    std::function<void(const Piece& piece)> prefetch;
  };

  explicit ReadAhead(Files files) : files_(std::move(files)) {}
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

  // A read of [offset, offset + length), which may go over the end of the file. Calls
  // Files::prefetch() without a lock. A read that asks for nothing allocates nothing.
  void see(std::uint64_t file, std::uint64_t offset, std::uint64_t length);

 private:
  struct Stream {
    std::uint64_t file = 0;
    std::uint64_t size = 0;        // of the file
    std::uint64_t position = 0;    // the end of what was read
    std::uint64_t used = 0;        // the clock at its last read; 0: none
    unsigned in_sequence = 0;      // reads that went on, at most kTrusted
    bool follows = false;          // it came from the previous file
    std::uint64_t window = 0;      // 0: nothing was asked for
    std::uint64_t asked_file = 0;  // where the next window begins
    std::uint64_t asked_offset = 0;
    std::uint64_t ahead = 0;  // bytes asked for that the reader has not reached
  };
  static constexpr unsigned kTrusted = 2;
  static constexpr std::size_t kPieces = 16;  // of one window: files that it goes over
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
