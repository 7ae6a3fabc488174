// The recipe of a virtual file: a list of spans, which is immutable once built. A span is one of
//
//   literal     bytes that the Content owns         (the header of an npy file)
//   borrowed    bytes that another object owns      (a text that many recipes share)
//   extent      a range of a source                 (a tensor)
//   production  bytes computed when they are read   (a table, a conversion)
//
//   raw tensor   [ extent ]
//   npy file     [ literal | extent ]
//   merged file  [ literal | extent | extent | ... ]
//
// Every Content is read in the same way. missing() returns the extents to fetch first. read()
// returns pieces for the kernel to send. copy() returns the bytes to code of stfs. read() and
// copy() verify the sources after they have all bytes, and return 0 or an errno: ESTALE if a source
// is no longer the version that was opened, or the errno of a source (EIO).
//
// Thread safety: const members may be called from any thread. Lifetime: sources and borrowed bytes
// must outlive the Content. The pieces of a Reading are valid as long as both the Content and the
// Reading exist.
#pragma once

#include "core/source/source.h"

#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <memory_resource>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace stfs {

// A range of a source.
struct Extent {
  const Source* source = nullptr;
  std::uint64_t offset = 0;  // bytes
  std::uint64_t length = 0;  // bytes

  // Returns the part that begins `from` bytes into the extent and has `most` bytes, or fewer at its
  // end.
  Extent part(std::uint64_t from, std::uint64_t most) const {
    const std::uint64_t skip = std::min(from, length);
    return {source, offset + skip, std::min(most, length - skip)};
  }
};

// Computes the bytes of a production, in any order. Thread safety: const members may be called from
// any thread. Lifetime: the sources that it reads must outlive it.
class Producer {
 public:
  Producer() = default;
  Producer(const Producer&) = delete;
  Producer& operator=(const Producer&) = delete;
  virtual ~Producer() = default;

  virtual std::uint64_t size() const = 0;  // bytes; constant

  // Fills `out` with the bytes from `offset` on; offset + out.size() <= size(). Returns 0 or an
  // errno. The bytes are valid only if verify() returns 0 afterwards.
  virtual int produce(std::uint64_t offset, std::span<std::byte> out) const = 0;

  // Appends the extents that produce() of this range reads and that are not local (Source::has).
  // length > 0 and offset + length <= size().
  virtual void missing(std::uint64_t offset, std::uint64_t length,
                       std::vector<Extent>& missing) const = 0;

  // Source::verify() of every source that produce() reads: 0 or the first errno.
  virtual int verify() const { return 0; }
};

// The result of Content::read(): pieces that point into sources, literals, or buffers of the
// Reading. Their bytes do not change while the Reading exists. It has room for a few pieces and
// pins, so that a typical read allocates only its buffers.
struct Reading {
  Reading() = default;
  Reading(const Reading&) = delete;
  Reading& operator=(const Reading&) = delete;

 private:
  std::array<std::byte, 512> inline_{};
  std::pmr::monotonic_buffer_resource memory_{inline_.data(), inline_.size()};

 public:
  struct Pin {
    const Source* source;
    Pinned pinned;
  };
  std::pmr::vector<iovec> pieces{&memory_};
  std::pmr::vector<Pin> pins{&memory_};
  std::pmr::vector<std::unique_ptr<std::byte[]>> buffers{&memory_};

  void clear();
};

class Content {
 public:
  // Builders. Each appends a span and returns *this. Adjacent extents of one source are joined.
  Content& literal(std::string bytes);
  Content& borrowed(std::string_view bytes);
  Content& extent(const Source& source, std::uint64_t offset, std::uint64_t length);
  Content& production(std::unique_ptr<const Producer> producer);

  Content& append(Content other);  // appends all spans of `other`

  std::uint64_t size() const { return size_; }  // bytes

  // Returns the extent if the Content consists of a single extent, else nullopt.
  std::optional<Extent> extent() const;

  // Returns all spans: the range of each in the virtual file, and its extent if it is one.
  struct Place {
    std::uint64_t begin, length;
    std::optional<Extent> extent;
  };
  std::vector<Place> places() const;

  // Returns the extents that a read of [offset, offset+length) needs and that are not local. Always
  // empty if all sources are local files. The range is cut at the end.
  std::vector<Extent> missing(std::uint64_t offset, std::uint64_t length) const;

  // Fills `reading`, which must be empty, with the pieces of [offset, offset+length), cut at the
  // end; it stays empty at or past the end. Verifies the sources of the range last. A piece points
  // into a source only if the source could be pinned. A range of more than kMaxPieces spans becomes
  // one buffer.
  int read(std::uint64_t offset, std::uint64_t length, Reading& reading) const;

  // Fills `out` from `offset` on; offset + out.size() <= size(). Verifies the sources of the range.
  int copy(std::uint64_t offset, std::span<std::byte> out) const;

  // Like copy(), but does not verify: the bytes are valid only if verify() returns 0 afterwards.
  // Use it for many copies, because each verify() of a source on a network file system asks its
  // server.
  int copy_unverified(std::uint64_t offset, std::span<std::byte> out) const;

  // Verifies all sources: 0, ESTALE, or an errno (Source::verify).
  int verify() const { return verify(0, size_); }
  int verify(std::uint64_t offset, std::uint64_t length) const;  // the sources of a range

  static constexpr std::size_t kMaxPieces = 64;  // well under IOV_MAX (1024)

 private:
  struct SourcePosition {
    const Source* source;
    std::uint64_t offset;  // bytes
  };
  using Kind =
      std::variant<std::string, std::string_view, SourcePosition, std::unique_ptr<const Producer>>;
  struct Span {
    std::uint64_t begin;   // offset in the virtual file, bytes
    std::uint64_t length;  // bytes; never 0
    Kind kind;
  };

  void add(std::uint64_t length, Kind kind);
  // Returns the span with byte `offset`, which must be less than size_.
  std::vector<Span>::const_iterator span_at(std::uint64_t offset) const;

  std::vector<Span> spans_;
  std::uint64_t size_ = 0;
};

// Reads a whole extent like Content::read(), but needs no Content.
int read_extent(const Extent& extent, Reading& reading);

}  // namespace stfs
