#include "core/recipe/content.h"

#include <algorithm>
#include <cstring>

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

}  // namespace

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

Content& Content::extent(const LocalFile& source, std::uint64_t offset, std::uint64_t length) {
  if (!spans_.empty()) {
    Span& last = spans_.back();
    const Extent* before = std::get_if<Extent>(&last.kind);
    if (before != nullptr && before->source == &source && before->offset + last.length == offset) {
      last.length += length;
      size_ += length;
      return *this;
    }
  }
  add(length, Extent{&source, offset});
  return *this;
}

Content& Content::production(std::unique_ptr<const Producer> producer) {
  const std::uint64_t length = producer->size();
  add(length, std::move(producer));
  return *this;
}

Content& Content::append(Content other) {
  for (Span& span : other.spans_) {
    if (const Extent* extent = std::get_if<Extent>(&span.kind)) {
      this->extent(*extent->source, extent->offset, span.length);
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

int Content::read(std::uint64_t offset, std::uint64_t length, Reading& reading) const {
  if (offset >= size_ || length == 0) return 0;
  const std::uint64_t begin = offset;
  const std::uint64_t end = offset + std::min(length, size_ - offset);
  const auto first = span_at(offset);
  if (static_cast<std::size_t>(span_at(end - 1) - first) >= kMaxPieces) {
    return fill(reading, end - offset,
                [&](std::span<std::byte> buffer) { return copy(offset, buffer); });
  }
  std::vector<const LocalFile*> sent_from;  // the mappings that pieces point into
  for (auto span = first; offset < end; ++span) {
    const std::uint64_t skip = offset - span->begin;
    const std::uint64_t take = std::min(end, span->begin + span->length) - offset;
    const int error =
        std::visit(Overloaded{[&](std::string_view bytes) {
                                reading.pieces.push_back(piece(bytes.data() + skip, take));
                                return 0;
                              },
                              [&](const Extent& extent) {
                                const LocalFile& source = *extent.source;
                                const std::uint64_t from = extent.offset + skip;
                                if (!source.can_send(from, take)) {
                                  // The bytes could change after the check, while they are copied
                                  // or while the kernel waits for the disk, for as long as a disk
                                  // may take. Read, and check afterwards.
                                  return fill(reading, take, [&](std::span<std::byte> buffer) {
                                    return source.is_resident(from, take)
                                               ? source.read_unverified(buffer, from)
                                               : source.read_in_turn(buffer, from);
                                  });
                                }
                                if (std::ranges::find(sent_from, &source) == sent_from.end()) {
                                  sent_from.push_back(&source);
                                }
                                reading.pieces.push_back(piece(source.bytes().data() + from, take));
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
  // Last, since filling a buffer may have taken long, and who wants to write waits for the guards.
  for (const LocalFile* source : sent_from) {
    LocalFile::Guard guard = source->guard();
    if (!guard.owns_lock()) {  // somebody is about to write
      reading = {};
      return fill(reading, end - begin,
                  [&](std::span<std::byte> buffer) { return copy(begin, buffer); });
    }
    reading.guards.push_back(std::move(guard));
  }
  return verify(begin, end - begin);
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
                              [&](const Extent& extent) {
                                return extent.source->read_unverified(part, extent.offset + skip);
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
  const LocalFile* verified = nullptr;
  const auto end = span_at(offset + length - 1) + 1;
  for (auto span = span_at(offset); span != end; ++span) {
    int error = 0;
    if (const Extent* extent = std::get_if<Extent>(&span->kind)) {
      if (extent->source == verified) continue;
      error = extent->source->verify();
      verified = extent->source;
    } else if (const auto* producer = std::get_if<std::unique_ptr<const Producer>>(&span->kind)) {
      error = (*producer)->verify();
    }
    if (error != 0) return error;
  }
  return 0;
}

}  // namespace stfs
