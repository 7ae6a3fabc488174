#include "core/recipe/content.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace stfs {
namespace {

// Joins the handlers of a variant into one visitor.
template <class... F>
struct Overloaded : F... {
  using F::operator()...;
};
template <class... F>
Overloaded(F...) -> Overloaded<F...>;

iovec piece(const void* data, std::uint64_t length) {
  return {const_cast<void*>(data), static_cast<std::size_t>(length)};  // iovec is not const-correct
}

// Adds a buffer of `length` bytes that `into` fills.
template <class Into>
int fill(Reading& reading, std::uint64_t length, const Into& into) {
  const auto size = static_cast<std::size_t>(length);
  auto buffer = std::make_unique_for_overwrite<std::byte[]>(size);
  if (const int error = into(std::span(buffer.get(), size))) return error;
  reading.pieces.push_back(piece(buffer.get(), size));
  reading.buffers.push_back(std::move(buffer));
  return 0;
}

// The bytes could change after the check, while they are copied or while the kernel waits for the
// disk, for as long as a disk may take. So they are read, and checked afterwards.
int read_into(Reading& reading, const Source& source, ByteRange range) {
  return fill(reading, range.length,
              [&](std::span<std::byte> buffer) { return source.read_ahead(buffer, range.offset); });
}

// Where byte 0 of a source is, pinned once for all pieces; null when it cannot be pinned.
const std::byte* pin(Reading& reading, const Source& source) {
  const auto known = std::ranges::find(reading.pins, &source, &Reading::Pin::source);
  if (known != reading.pins.end()) return known->pinned.data;
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
    const From* before = std::get_if<From>(&last.kind);
    if (before != nullptr && before->source == &source && before->offset + last.length == offset) {
      last.length += length;
      size_ += length;
      return *this;
    }
  }
  add(length, From{&source, offset});
  return *this;
}

std::optional<Extent> Content::extent() const {
  if (spans_.size() != 1) return std::nullopt;
  const From* from = std::get_if<From>(&spans_.front().kind);
  if (from == nullptr) return std::nullopt;
  return Extent{from->source, from->offset, size_};
}

Content& Content::production(std::unique_ptr<const Producer> producer) {
  const std::uint64_t length = producer->size();
  add(length, std::move(producer));
  return *this;
}

Content& Content::append(Content other) {
  for (Span& span : other.spans_) {
    if (const From* from = std::get_if<From>(&span.kind)) {
      extent(*from->source, from->offset, span.length);
    } else {
      add(span.length, std::move(span.kind));
    }
  }
  return *this;
}

std::vector<Content::Span>::const_iterator Content::span_at(std::uint64_t offset) const {
  // The last span that begins at or before offset.
  return std::prev(std::ranges::upper_bound(spans_, offset, {}, &Span::begin));
}

std::vector<Extent> Content::missing(std::uint64_t offset, std::uint64_t length) const {
  std::vector<Extent> missing;
  if (offset >= size_ || length == 0) return missing;
  const std::uint64_t end = offset + std::min(length, size_ - offset);
  for (auto span = span_at(offset); offset < end; ++span) {
    const std::uint64_t skip = offset - span->begin;
    const std::uint64_t take = std::min(end, span->begin + span->length) - offset;
    if (const From* from = std::get_if<From>(&span->kind)) {
      const ByteRange range{from->offset + skip, take};
      if (!from->source->has(range)) missing.push_back({from->source, range.offset, take});
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
    return fill(reading, end - begin,
                [&](std::span<std::byte> buffer) { return copy(begin, buffer); });
  };
  const auto first = span_at(offset);
  if (static_cast<std::size_t>(span_at(end - 1) - first) >= kMaxPieces) return read_all();
  // Pinned last: filling a buffer may take long, and a writer waits for the pins.
  std::array<std::optional<From>, kMaxPieces> to_pin;  // by piece
  for (auto span = first; offset < end; ++span) {
    const std::uint64_t skip = offset - span->begin;
    const std::uint64_t take = std::min(end, span->begin + span->length) - offset;
    const int error =
        std::visit(Overloaded{[&](std::string_view bytes) {
                                reading.pieces.push_back(piece(bytes.data() + skip, take));
                                return 0;
                              },
                              [&](const From& from) {
                                const ByteRange range{from.offset + skip, take};
                                if (!from.source->can_pin(range)) {
                                  return read_into(reading, *from.source, range);
                                }
                                to_pin[reading.pieces.size()] = From{from.source, range.offset};
                                reading.pieces.push_back(piece(nullptr, take));
                                return 0;
                              },
                              [&](const std::unique_ptr<const Producer>& producer) {
                                return fill(reading, take, [&](std::span<std::byte> buffer) {
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
    if (data == nullptr) {  // somebody is about to write
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
    error = read_into(reading, source, range);
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
    const std::uint64_t skip = offset - span->begin;
    const auto take =
        static_cast<std::size_t>(std::min<std::uint64_t>(out.size(), span->length - skip));
    const std::span part = out.first(take);
    const int error =
        std::visit(Overloaded{[&](std::string_view bytes) {
                                std::memcpy(part.data(), bytes.data() + skip, take);
                                return 0;
                              },
                              [&](const From& from) {
                                return from.source->read_unverified(part, from.offset + skip);
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
  const Source* verified = nullptr;
  const auto end = span_at(offset + length - 1) + 1;
  for (auto span = span_at(offset); span != end; ++span) {
    int error = 0;
    if (const From* from = std::get_if<From>(&span->kind)) {
      if (from->source == verified) continue;
      error = from->source->verify();
      verified = from->source;
    } else if (const auto* producer = std::get_if<std::unique_ptr<const Producer>>(&span->kind)) {
      error = (*producer)->verify();
    }
    if (error != 0) return error;
  }
  return 0;
}

}  // namespace stfs
