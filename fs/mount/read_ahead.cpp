#include "fs/mount/read_ahead.h"

#include <algorithm>

namespace stfs {
namespace {

// How far the requests of a sequential reader may be out of order, in requests.
constexpr std::uint64_t kEarly = 8;
constexpr std::uint64_t kLate = 16;

}  // namespace

ReadAhead::Stream* ReadAhead::stream_of(std::uint64_t file, std::uint64_t offset,
                                        std::uint64_t length) {
  Stream* nearest = nullptr;
  std::uint64_t nearest_distance = 0;
  for (Stream& stream : streams_) {
    if (stream.file != file || stream.used == 0) continue;
    const bool is_early = offset >= stream.position;
    const std::uint64_t distance = is_early ? offset - stream.position : stream.position - offset;
    if (distance / length >= (is_early ? kEarly : kLate)) continue;
    if (nearest != nullptr && distance >= nearest_distance) continue;
    nearest = &stream;
    nearest_distance = distance;
  }
  return nearest;
}

// Returns the stream that has read the previous file to its end, or nullptr.
ReadAhead::Stream* ReadAhead::stream_before(std::uint64_t file, std::uint64_t offset,
                                            std::uint64_t length) {
  if (offset / length >= kEarly) return nullptr;
  for (Stream& stream : streams_) {
    if (stream.used == 0 || stream.file >= file || stream.position < stream.size) continue;
    if (files_.next(stream.file) == file) return &stream;
  }
  return nullptr;
}

void ReadAhead::begin(std::uint64_t file, std::uint64_t offset, std::uint64_t length) {
  Stream& stream = *std::ranges::min_element(streams_, {}, &Stream::used);
  stream = {};
  stream.file = file;
  stream.size = files_.size(file);
  stream.used = clock_;
  stream.asked_file = file;
  advance(stream, offset, length);
  stream.in_sequence = 0;
}

void ReadAhead::advance(Stream& stream, std::uint64_t offset, std::uint64_t length) {
  const std::uint64_t end =
      offset >= stream.size ? stream.size : offset + std::min(length, stream.size - offset);
  if (end <= stream.position) return;  // the request is late
  const std::uint64_t progress = end - stream.position;
  stream.in_sequence =
      std::min(kTrusted, stream.in_sequence + (offset == stream.position ? kTrusted : 1));
  stream.position = end;
  stream.ahead -= std::min(stream.ahead, progress);
  if (stream.asked_file == stream.file && stream.asked_offset < end) {
    stream.asked_offset = end;
    stream.ahead = 0;
  }
}

void ReadAhead::ask(Stream& stream, Pieces& pieces) const {
  if (stream.in_sequence < kTrusted || stream.ahead > stream.window / 2) return;
  const bool at_end = stream.asked_file == stream.file && stream.asked_offset >= stream.size;
  if (at_end && !stream.follows) return;
  stream.window = std::clamp(2 * stream.window, kFirstWindow, kLargestWindow);
  std::uint64_t size =
      stream.asked_file == stream.file ? stream.size : files_.size(stream.asked_file);
  while (stream.ahead < stream.window && pieces.count < kPieces) {
    const std::uint64_t take =
        std::min(stream.window - stream.ahead, size - std::min(size, stream.asked_offset));
    if (take > 0) pieces.all[pieces.count++] = {stream.asked_file, stream.asked_offset, take};
    stream.asked_offset += take;
    stream.ahead += take;
    if (stream.asked_offset < size) return;  // the window is full
    if (!stream.follows) return;
    const std::optional<std::uint64_t> next = files_.next(stream.asked_file);
    if (!next) return;
    stream.asked_file = *next;
    stream.asked_offset = 0;
    size = files_.size(*next);
  }
}

void ReadAhead::see(std::uint64_t file, std::uint64_t offset, std::uint64_t length) {
  if (length == 0) return;
  Pieces pieces;
  {
    const std::lock_guard lock(mutex_);
    ++clock_;
    Stream* stream = stream_of(file, offset, length);
    if (stream == nullptr) {
      stream = stream_before(file, offset, length);
      if (stream == nullptr) return begin(file, offset, length);
      stream->file = file;
      stream->size = files_.size(file);
      stream->position = 0;
      stream->follows = true;
      stream->in_sequence = kTrusted;
      if (stream->asked_file < file) {
        stream->asked_file = file;
        stream->asked_offset = 0;
        stream->ahead = 0;
      }
    }
    stream->used = clock_;
    advance(*stream, offset, length);
    ask(*stream, pieces);
  }
  for (std::size_t i = 0; i < pieces.count; ++i) files_.prefetch(pieces.all[i]);
}

}  // namespace stfs
