#include "fs/mount/gathering.h"

#include "core/base/while_wanted.h"
#include "core/recipe/arrival.h"

#include <algorithm>
#include <cerrno>
#include <new>
#include <span>
#include <utility>

namespace stfs {

void Gathering::go_on() noexcept {
  bool goes_on = true;
  while (goes_on) {
    goes_on = false;
    waiting_->go_on(ticket_, [&] { goes_on = step(); });
  }
}

bool Gathering::step() {
  const WhileWanted while_wanted([this] { return waiting_->is_waiting(ticket_); });
  std::vector<Extent> missing;
  try {
    Reply reply;  // gone before want(): a source may be ready at once, and a recipe has one turn
    bool is_done = false;
    const int error = look(reply, missing, is_done);
    if (error != 0 || is_done) {
      waiting_->arrive(ticket_, error, reply);
      return false;
    }
  } catch (const std::bad_alloc&) {
    waiting_->arrive(ticket_, ENOMEM, {});
    return false;
  }
  return missing.empty() || want(missing);
}

int Gathering::look(Reply& reply, std::vector<Extent>& missing, bool& is_done) {
  if (const int error = error_.load()) return error;
  if (const int error = find_(reply.recipe)) return error;
  const Content& content = reply.recipe.content();
  if (begin_ >= content.size()) {
    is_done = true;
    return 0;
  }
  length_ = std::min(length_, content.size() - begin_);
  const std::uint64_t left = begin_ + length_ - at_;
  std::uint64_t length = std::min(take_, left);
  std::vector<Extent> later;
  missing = missing_part(content, at_, length, kMostMissing, &later);
  take_ = length;
  if (!missing.empty()) {
    const std::uint64_t bytes = bytes_of(missing) + bytes_of(later);
    const bool is_lost = std::exchange(missing_, bytes) <= bytes;
    if (is_lost) take_ = std::max<std::uint64_t>(1, length / 2);
    if (is_lost && ++lost_ == kMostLost) return EIO;
    if (take_ != length) missing = missing_part(content, at_, take_, kMostMissing, &later);
    prefetch(later);
    if (!missing.empty()) return 0;
  }
  const bool is_whole = buffer_ == nullptr && take_ == length_;
  int error = 0;
  if (is_whole) {
    error = content.read(begin_, length_, reply.reading);
  } else {
    const auto size = static_cast<std::size_t>(length_);
    if (buffer_ == nullptr) buffer_ = std::make_unique_for_overwrite<std::byte[]>(size);
    error = content.copy(
        at_, std::span(buffer_.get(), size)
                 .subspan(static_cast<std::size_t>(at_ - begin_), static_cast<std::size_t>(take_)));
  }
  if (error == EAGAIN) return lost_++ == kMostLost ? EIO : 0;
  if (error != 0) return error;
  lost_ = 0;
  missing_ = UINT64_MAX;
  at_ += take_;
  is_done = at_ == begin_ + length_;
  if (is_done && !is_whole) {
    reply.reading.pieces.push_back({buffer_.get(), static_cast<std::size_t>(length_)});
    reply.reading.buffers.push_back(std::move(buffer_));
  }
  // Bytes may lie closer from here on.
  take_ = take_ > UINT64_MAX / 2 ? take_ : take_ * 2;
  return 0;
}

bool Gathering::want(const std::vector<Extent>& missing) {
  left_ = missing.size() + 1;
  for (const Extent& extent : missing) {
    try {
      extent.source->want({extent.offset, extent.length},
                          [self = shared_from_this()](int error) { self->arrived(error); });
    } catch (const std::bad_alloc&) {
      error_ = ENOMEM;
      --left_;
    }
  }
  return --left_ == 0;  // all were ready at once
}

void Gathering::arrived(int error) {
  if (error != 0) error_ = error;
  if (--left_ == 0) go_on();
}

}  // namespace stfs
