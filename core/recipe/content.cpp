#include "core/recipe/content.h"

#include "core/base/while_wanted.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace stfs {
namespace {

// A visitor for std::visit, made of one lambda for each alternative.
template <class... F>
struct Overloaded : F... {
  using F::operator()...;
};
template <class... F>
Overloaded(F...) -> Overloaded<F...>;

iovec piece(const void* data, std::uint64_t length) {
  return {const_cast<void*>(data), static_cast<std::size_t>(length)};  // iovec lacks const
}

// Adds a piece: a buffer of `length` bytes, filled by `read`.
template <class Read>
int add_buffer(Reading& reading, std::uint64_t length, const Read& read) {
  const auto size = static_cast<std::size_t>(length);
  auto buffer = std::make_unique_for_overwrite<std::byte[]>(size);
  if (const int error = read(std::span(buffer.get(), size))) return error;
  reading.pieces.push_back(piece(buffer.get(), size));
  reading.buffers.push_back(std::move(buffer));
  return 0;
}

// Reads an extent that cannot be pinned into a buffer. The bytes of a buffer do not change, so it
// is enough to verify them after the read. The bytes of a mapping could change between the check
// and the reply.
int add_extent_buffer(Reading& reading, const Source& source, ByteRange range) {
  return add_buffer(reading, range.length, [&](std::span<std::byte> buffer) {
    return source.read_ahead(buffer, range.offset);
  });
}

// Pins a source, once per reading. Returns the address of its byte 0, or null if it cannot be
// pinned.
const std::byte* pin(Reading& reading, const Source& source) {
  const auto existing = std::ranges::find(reading.pins, &source, &Reading::Pin::source);
  if (existing != reading.pins.end()) return existing->pinned.data;
  Pinned pinned = source.try_pin();
  if (!pinned) return nullptr;
  reading.pins.push_back({&source, std::move(pinned)});
  return reading.pins.back().pinned.data;
}

}  // namespace

void Reading::clear() {
  pieces.clear();
  pins.clear();
  buffers.clear();
}

void Content::add(std::uint64_t length, Kind kind) {
  if (length == 0) return;
  spans_.push_back({size_, length, std::move(kind)});
  size_ += length;
}

Content& Content::literal(std::string bytes) {
  const std::uint64_t length = bytes.size();
  add(length, std::move(bytes));
  return *this;
}

Content& Content::borrowed(std::string_view bytes) {
  add(bytes.size(), bytes);
  return *this;
}

Content& Content::extent(const Source& source, std::uint64_t offset, std::uint64_t length) {
  if (!spans_.empty()) {
    Span& last = spans_.back();
    const SourcePosition* before = std::get_if<SourcePosition>(&last.kind);
    if (before != nullptr && before->source == &source && before->offset + last.length == offset) {
      last.length += length;
      size_ += length;
      return *this;
    }
  }
  add(length, SourcePosition{&source, offset});
  return *this;
}

std::optional<Extent> Content::extent() const {
  if (spans_.size() != 1) return std::nullopt;
  const SourcePosition* position = std::get_if<SourcePosition>(&spans_.front().kind);
  if (position == nullptr) return std::nullopt;
  return Extent{position->source, position->offset, size_};
}

std::vector<Content::Place> Content::places() const {
  std::vector<Place> places;
  places.reserve(spans_.size());
  for (const Span& span : spans_) {
    Place& place = places.emplace_back(Place{span.begin, span.length, std::nullopt});
    if (const auto* position = std::get_if<SourcePosition>(&span.kind)) {
      place.extent = Extent{position->source, position->offset, span.length};
    }
  }
  return places;
}

Content& Content::production(std::unique_ptr<const Producer> producer) {
  const std::uint64_t length = producer->size();
  add(length, std::move(producer));
  return *this;
}

Content& Content::append(Content other) {
  for (Span& span : other.spans_) {
    if (const SourcePosition* position = std::get_if<SourcePosition>(&span.kind)) {
      extent(*position->source, position->offset, span.length);
    } else {
      add(span.length, std::move(span.kind));
    }
  }
  return *this;
}

std::vector<Content::Span>::const_iterator Content::span_at(std::uint64_t offset) const {
  return std::prev(std::ranges::upper_bound(spans_, offset, {}, &Span::begin));
}

std::vector<Extent> Content::missing(std::uint64_t offset, std::uint64_t length) const {
  std::vector<Extent> missing;
  if (offset >= size_ || length == 0) return missing;
  const std::uint64_t end = offset + std::min(length, size_ - offset);
  for (auto span = span_at(offset); offset < end; ++span) {
    const std::uint64_t skip = offset - span->begin;
    const std::uint64_t take = std::min(end, span->begin + span->length) - offset;
    if (const SourcePosition* position = std::get_if<SourcePosition>(&span->kind)) {
      const ByteRange range{position->offset + skip, take};
      if (!position->source->has(range)) missing.push_back({position->source, range.offset, take});
    } else if (const auto* producer = std::get_if<std::unique_ptr<const Producer>>(&span->kind)) {
      (*producer)->missing(skip, take, missing);
    }
    offset += take;
  }
  return missing;
}

int Content::read(std::uint64_t offset, std::uint64_t length, Reading& reading) const {
  if (offset >= size_ || length == 0) return 0;
  const std::uint64_t begin = offset;
  const std::uint64_t end = offset + std::min(length, size_ - offset);
  const auto read_all = [&] {
    return add_buffer(reading, end - begin,
                      [&](std::span<std::byte> buffer) { return copy(begin, buffer); });
  };
  const auto first = span_at(offset);
  const auto last = span_at(end - 1);
  if (const auto* only = std::get_if<SourcePosition>(&first->kind);
      only != nullptr && first == last) {
    return read_extent({only->source, only->offset + offset - first->begin, end - offset}, reading);
  }
  if (static_cast<std::size_t>(last - first) >= kMaxPieces) return read_all();
  // Pin the sources last, because writers wait for the pins, and reads into buffers may take long.
  std::array<std::optional<SourcePosition>, kMaxPieces> to_pin;  // one per piece
  for (auto span = first; offset < end; ++span) {
    const std::uint64_t skip = offset - span->begin;
    const std::uint64_t take = std::min(end, span->begin + span->length) - offset;
    const int error = std::visit(
        Overloaded{[&](std::string_view bytes) {
                     reading.pieces.push_back(piece(bytes.data() + skip, take));
                     return 0;
                   },
                   [&](const SourcePosition& position) {
                     const Source& source = *position.source;
                     const ByteRange range{position.offset + skip, take};
                     if (!source.can_pin(range)) {
                       return add_extent_buffer(reading, source, range);
                     }
                     to_pin[reading.pieces.size()] = SourcePosition{&source, range.offset};
                     reading.pieces.push_back(piece(nullptr, take));
                     return 0;
                   },
                   [&](const std::unique_ptr<const Producer>& producer) {
                     return add_buffer(reading, take, [&](std::span<std::byte> buffer) {
                       return producer->produce(skip, buffer);
                     });
                   }},
        span->kind);
    if (error != 0) {
      const int changed = verify(begin, end - begin);
      return changed != 0 ? changed : error;
    }
    offset += take;
  }
  for (std::size_t i = 0; i < reading.pieces.size(); ++i) {
    if (!to_pin[i]) continue;
    const std::byte* data = pin(reading, *to_pin[i]->source);
    if (data == nullptr) {  // the kernel has asked for the lease since can_pin()
      reading.clear();
      return read_all();
    }
    reading.pieces[i] = piece(data + to_pin[i]->offset, reading.pieces[i].iov_len);
  }
  return verify(begin, end - begin);
}

int read_extent(const Extent& extent, Reading& reading) {
  if (extent.length == 0) return 0;
  const Source& source = *extent.source;
  const ByteRange range{extent.offset, extent.length};
  int error = 0;
  const std::byte* data = source.can_pin(range) ? pin(reading, source) : nullptr;
  if (data != nullptr) {
    reading.pieces.push_back(piece(data + range.offset, range.length));
  } else {
    error = add_extent_buffer(reading, source, range);
  }
  const int changed = source.verify();
  return changed != 0 ? changed : error;
}

int Content::copy(std::uint64_t offset, std::span<std::byte> out) const {
  const int error = copy_unverified(offset, out);
  const int changed = verify(offset, out.size());
  return changed != 0 ? changed : error;
}

int Content::copy_unverified(std::uint64_t offset, std::span<std::byte> out) const {
  if (out.empty()) return 0;
  for (auto span = span_at(offset); !out.empty(); ++span) {
    if (WhileWanted::has_ended()) return EINTR;
    const std::uint64_t skip = offset - span->begin;
    const auto take =
        static_cast<std::size_t>(std::min<std::uint64_t>(out.size(), span->length - skip));
    const std::span part = out.first(take);
    const int error = std::visit(Overloaded{[&](std::string_view bytes) {
                                              std::memcpy(part.data(), bytes.data() + skip, take);
                                              return 0;
                                            },
                                            [&](const SourcePosition& position) {
                                              return position.source->read_unverified(
                                                  part, position.offset + skip);
                                            },
                                            [&](const std::unique_ptr<const Producer>& producer) {
                                              return producer->produce(skip, part);
                                            }},
                                 span->kind);
    if (error != 0) return error;
    out = out.subspan(take);
    offset += take;
  }
  return 0;
}

int Content::verify(std::uint64_t offset, std::uint64_t length) const {
  if (length == 0) return 0;
  const Source* verified = nullptr;  // the last one, because neighbours often share a source
  const auto end = span_at(offset + length - 1) + 1;
  for (auto span = span_at(offset); span != end; ++span) {
    int error = 0;
    if (const SourcePosition* position = std::get_if<SourcePosition>(&span->kind)) {
      if (position->source == verified) continue;
      error = position->source->verify();
      verified = position->source;
    } else if (const auto* producer = std::get_if<std::unique_ptr<const Producer>>(&span->kind)) {
      error = (*producer)->verify();
    }
    if (error != 0) return error;
  }
  return 0;
}

}  // namespace stfs
