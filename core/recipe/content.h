// The recipe: what a virtual file is made of.
//
// A Content is an immutable list of spans, each one of
//
//   literal     bytes that it holds itself          (the header of an npy file)
//   borrowed    bytes that another holds            (a text that many recipes have)
//   extent      a range of a source                 (a tensor)
//   production  bytes computed when they are read   (a table, a conversion)
//
//   raw tensor   [ extent ]
//   npy file     [ literal | extent ]
//   merged file  [ literal | extent | extent | ... ]
//
// There is one way to read any of them. `missing` says what is still elsewhere; `read` yields what
// to send, for the kernel; `copy` yields bytes that code of ours may look at. The last two answer 0
// or an errno: ESTALE when a source is no longer the version that was opened, EIO and its like from
// the source. Sources are verified last, when all bytes are there.
//
// Thread safety: const members may be called from any thread. Lifetime: the sources that extents
// refer to, and borrowed bytes, outlive the Content; the pieces of a Reading are valid while
// Content and Reading live.
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

// A range of a source that a recipe is made of.
struct Extent {
  const Source* source = nullptr;
  std::uint64_t offset = 0;  // bytes
  std::uint64_t length = 0;  // bytes

  // The part of it from `from` on, of `most` bytes or up to its end.
  Extent part(std::uint64_t from, std::uint64_t most) const {
    const std::uint64_t skip = std::min(from, length);
    return {source, offset + skip, std::min(most, length - skip)};
  }
};

// Computes a fixed number of bytes, any part of them on request and in any order.
class Producer {
 public:
  Producer() = default;
  Producer(const Producer&) = delete;
  Producer& operator=(const Producer&) = delete;
  virtual ~Producer() = default;

  virtual std::uint64_t size() const = 0;  // bytes; never changes

  // Fills `out` with the bytes from `offset` on; offset + out.size() <= size(). 0 or an errno. The
  // bytes are good only if verify() returns 0 afterwards.
  virtual int produce(std::uint64_t offset, std::span<std::byte> out) const = 0;

  // Adds what produce() of this range would read and a source does not have here.
  virtual void missing(std::uint64_t /*offset*/, std::uint64_t /*length*/,
                       std::vector<Extent>& /*missing*/) const {}

  // 0, or ESTALE when a source that the bytes are computed from is not the version that was opened,
  // or an errno.
  virtual int verify() const { return 0; }
};

// What a read has to send: pieces that point into sources, literals, or buffers held here. While it
// lives, the bytes that the pieces point to do not change. A usual reading allocates nothing but
// its buffers.
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
  // The builders; each returns *this. Extents that continue the one before are joined with it.
  Content& literal(std::string bytes);
  Content& borrowed(std::string_view bytes);
  Content& extent(const Source& source, std::uint64_t offset, std::uint64_t length);
  Content& production(std::unique_ptr<const Producer> producer);

  Content& append(Content other);  // everything that `other` is made of

  std::uint64_t size() const { return size_; }  // bytes

  // The one extent that this is, if it is nothing else.
  std::optional<Extent> extent() const;

  // What a read of a range needs and a source does not have here; nothing for local files.
  std::vector<Extent> missing(std::uint64_t offset, std::uint64_t length) const;

  // Fills `reading`, which is empty, with the pieces for [offset, offset+length), cut at the end.
  // None when offset lies at or past the end. Every source that is touched is verified last. Pieces
  // point into a source only where its bytes can be pinned until they are sent. A range of many
  // small spans comes as one filled buffer, so that the number of pieces stays under kMaxPieces.
  int read(std::uint64_t offset, std::uint64_t length, Reading& reading) const;

  // Fills `out` from `offset` on; the range must lie inside. The bytes are good only if 0 returns.
  int copy(std::uint64_t offset, std::span<std::byte> out) const;

  // As copy(), for many that are verified together: the bytes are good only if verify() returns 0
  // afterwards. It is one question to the server of each source that is not on a local disk.
  int copy_unverified(std::uint64_t offset, std::span<std::byte> out) const;

  // 0, or ESTALE when a source is not the version that was opened, or an errno.
  int verify() const { return verify(0, size_); }

  static constexpr std::size_t kMaxPieces = 64;  // well under IOV_MAX (1024)

 private:
  struct From {
    const Source* source;
    std::uint64_t offset;
  };
  using Kind = std::variant<std::string, std::string_view, From, std::unique_ptr<const Producer>>;
  struct Span {
    std::uint64_t begin;   // in the virtual file
    std::uint64_t length;  // never 0
    Kind kind;
  };

  int verify(std::uint64_t offset, std::uint64_t length) const;  // the sources of a range
  void add(std::uint64_t length, Kind kind);
  std::vector<Span>::const_iterator span_at(std::uint64_t offset) const;

  std::vector<Span> spans_;
  std::uint64_t size_ = 0;
};

// As Content::read(), of all of an extent.
int read_extent(const Extent& extent, Reading& reading);

}  // namespace stfs
