#include "fs/mount/pending_fetch.h"

#include "core/base/while_wanted.h"

#include <cerrno>
#include <new>
#include <utility>

namespace stfs {

void PendingFetch::go_on() noexcept {
  bool goes_on = true;
  while (goes_on) {
    goes_on = false;
    waiting_->go_on(ticket_, [&] { goes_on = step(); });
  }
}

bool PendingFetch::step() {
  const WhileWanted while_wanted([this] { return waiting_->is_waiting(ticket_); });
  std::vector<Extent> missing;
  try {
    // Must end before want(): a source may be ready at once, and a recipe has one turn.
    Reply reply;
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

int PendingFetch::look(Reply& reply, std::vector<Extent>& missing, bool& is_done) {
  if (const int error = error_.load()) return error;
  if (const int error = find_(reply.recipe)) return error;
  const Content& content = reply.recipe.content();
  if (const int error = steps_.look(content, missing)) return error;
  is_done = steps_.is_done();
  if (is_done || !missing.empty()) return 0;
  const auto [begin, whole] = steps_.all();
  const auto [at, take] = steps_.next();
  const bool is_whole = buffer_ == nullptr && take == whole;
  const auto size = static_cast<std::size_t>(whole);
  int error = 0;
  if (is_whole) {
    error = content.read(begin, whole, reply.reading);
  } else {
    if (buffer_ == nullptr) buffer_ = std::make_unique_for_overwrite<std::byte[]>(size);
    error = content.copy(at, {buffer_.get() + (at - begin), static_cast<std::size_t>(take)});
  }
  if (const int failure = steps_.copied(error)) return failure;
  is_done = steps_.is_done();
  if (is_done && !is_whole) {
    reply.reading.pieces.push_back({buffer_.get(), size});
    reply.reading.buffers.push_back(std::move(buffer_));
  }
  return 0;
}

bool PendingFetch::want(const std::vector<Extent>& missing) {
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
  return --left_ == 0;  // all ranges were ready at once
}

void PendingFetch::arrived(int error) {
  if (error != 0) error_ = error;
  if (--left_ == 0) go_on();
}

}  // namespace stfs
