#include "core/source/source.h"

#include "core/base/error.h"
#include "core/base/posix.h"
#include "core/source/local_file.h"

#include <algorithm>
#include <cerrno>
#include <future>

namespace stfs {

namespace {

int read_part(const Source& source, std::span<std::byte> buffer, std::uint64_t offset) {
  const ByteRange range{offset, buffer.size()};
  int error = source.has(range) ? source.read_unverified(buffer, offset) : EAGAIN;
  for (unsigned lost = 0; error == EAGAIN && lost < Source::kMaxLost; ++lost) {
    // Read in the callback, because a source without a disk cache keeps the bytes until it returns.
    const auto done = std::make_shared<std::promise<int>>();
    source.want(range, [&, done](int arrived) {
      done->set_value(arrived != 0 ? arrived : source.read_unverified(buffer, offset));
    });
    error = done->get_future().get();
  }
  return error == EAGAIN ? EIO : error;
}

}  // namespace

bool Source::is_stale_copy() const {
  const LocalFile* const file = local_file();
  return file != nullptr && file->file_path() != path() && !is_current();
}

int Source::fetch(ByteRange range) const {
  if (has(range)) return 0;
  // Shared with the callback, so that the promise exists until set_value() has returned.
  const auto arrived = std::make_shared<std::promise<int>>();
  want(range, [arrived](int error) { arrived->set_value(error); });
  return arrived->get_future().get();
}

int Source::read(std::span<std::byte> buffer, std::uint64_t offset) const {
  constexpr std::size_t kMaxWanted = 8 << 20;  // bytes at a time, because memory must keep them
  int error = 0;
  do {
    if (buffer.size() > kMaxWanted) prefetch({offset, buffer.size()});
    const std::span<std::byte> part = buffer.first(std::min(buffer.size(), kMaxWanted));
    error = read_part(*this, part, offset);
    buffer = buffer.subspan(part.size());
    offset += part.size();
  } while (error == 0 && !buffer.empty());
  const int changed = verify();
  return changed != 0 ? changed : error;
}

void Source::record_failure(std::uint64_t begin, std::uint64_t end, int error) const {
  constexpr std::uint64_t kNear = 1 << 20;
  const std::lock_guard lock(failures_.mutex);
  for (Failure& failure : std::span(failures_.all).first(failures_.count)) {
    const bool is_range = begin != end && failure.begin != failure.end;
    const bool is_near = begin < failure.end + kNear && failure.begin < end + kNear;
    const bool is_same = is_range ? is_near : begin == end && failure.begin == failure.end;
    if (!is_same || failure.error != error) continue;
    failure.begin = std::min(failure.begin, begin);
    failure.end = std::max(failure.end, end);
    return;
  }
  if (failures_.count == kMaxFailures) return;
  const bool is_last = failures_.count + 1 == kMaxFailures;
  failures_.all[failures_.count++] = {begin, end, error, is_last};
}

void Source::mark_changed(const std::string& why) const {
  {
    const std::lock_guard lock(failures_.mutex);
    if (failures_.why.empty()) failures_.why = why;
  }
  changed_->store(true, std::memory_order_relaxed);
}

std::string Source::failure_text() const {
  const std::lock_guard lock(failures_.mutex);
  return failures_.why;
}

std::optional<Source::Failure> Source::take_failure() const {
  const std::lock_guard lock(failures_.mutex);
  if (failures_.taken == failures_.count) return std::nullopt;
  return failures_.all[failures_.taken++];
}

std::vector<Source::Failure> Source::failures() const {
  const std::lock_guard lock(failures_.mutex);
  return {failures_.all.begin(), failures_.all.begin() + failures_.count};
}

void Source::restore_failures(std::span<const Failure> failures) const {
  const std::lock_guard lock(failures_.mutex);
  failures_.count = failures_.taken = std::min(failures.size(), kMaxFailures);
  std::ranges::copy(failures.first(failures_.count), failures_.all.begin());
}

void throw_read_failure(const Source& source, const std::string& place, const std::string& subject,
                        int error) {
  const std::string why = source.failure_text();
  if (why.empty()) throw_errno(ErrorCode::kUnreadable, place, subject, error);
  throw Error(ErrorCode::kUnreadable, place, subject.empty() ? why : subject + ": " + why, error);
}

std::unique_ptr<const Source> open_source(const std::string& path) {
  return std::make_unique<const LocalFile>(path);
}

}  // namespace stfs
