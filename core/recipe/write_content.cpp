#include "core/recipe/write_content.h"

#include "core/base/file_limit.h"
#include "core/base/posix.h"
#include "core/recipe/fetch_missing.h"
#include "core/source/local_file.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

namespace stfs {
namespace {

constexpr std::uint64_t kCallBytes = 64 << 20;   // bytes of one copy_file_range(2)
constexpr std::uint64_t kMemoryBytes = 1 << 20;  // bytes of the buffer

// Shares an extent with `fd` at offset `at`. Returns 0 or an errno. The length and both offsets
// must be multiples of a block.
int share(const Extent& from, int fd, std::uint64_t at) {
  file_clone_range range{};
  range.src_fd = from.source->local_file()->descriptor({from.offset, from.length});
  range.src_offset = from.offset;
  range.src_length = from.length;  // never 0, which would mean up to the end
  range.dest_offset = at;
  return ::ioctl(fd, FICLONERANGE, &range) == 0 ? 0 : errno;
}

class Writer {
 public:
  Writer(const Content& content, int fd, const std::function<void(std::uint64_t)>& progress,
         const std::atomic<bool>* stop)
      : content_(content), reader_(content, stop), stop_(stop), fd_(fd), progress_(progress) {
    struct stat status {};
    is_file_ = ::fstat(fd, &status) == 0 && S_ISREG(status.st_mode) &&
               (::fcntl(fd, F_GETFL) & O_APPEND) == 0 && ::lseek(fd, 0, SEEK_CUR) == 0;
  }

  Written run() {
    const NoFileLimitSignal no_signal;
    for (const Content::Place& place : content_.places()) {
      if (is_file_ && place.extent && place.extent->source->local_file() != nullptr) {
        place_extent(place.begin, *place.extent);
      } else {
        through_memory(place.begin, place.length);
      }
      if (result_.error == 0 && stop_ != nullptr && *stop_) fail(EINTR, true);
      if (result_.error != 0) return result_;
    }
    if (const int error = content_.verify()) fail(error, true);
    return result_;
  }

 private:
  void fail(int error, bool failed_reading) {
    result_.error = error;
    result_.failed_reading = failed_reading;
  }

  void place_extent(std::uint64_t at, const Extent& extent) {
    const auto [lead, whole] = shareable_part(at, extent);
    if (!may_share_ || whole == 0) return copy(at, extent);
    copy(at, extent.part(0, lead));
    if (result_.error != 0) return;
    if (share(extent.part(lead, whole), fd_, at + lead) == 0) {
      result_.shared += whole;
      progress_(whole);
    } else {
      may_share_ = false;
      copy(at + lead, extent.part(lead, whole));
    }
    if (result_.error == 0) copy(at + lead + whole, extent.part(lead + whole, extent.length));
  }

  void copy(std::uint64_t at, const Extent& extent) {
    std::uint64_t done = 0;
    while (may_copy_ && done < extent.length) {
      auto from = static_cast<off_t>(extent.offset + done);
      auto to = static_cast<off_t>(at + done);
      const int source = extent.source->local_file()->descriptor({extent.offset, extent.length});
      const ssize_t n =
          ::copy_file_range(source, &from, fd_, &to, std::min(kCallBytes, extent.length - done), 0);
      if (n < 0 && (errno == ENOSPC || errno == EDQUOT || errno == EIO || errno == EFBIG)) {
        return fail(errno, false);
      }
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) {
        // The kernel cannot copy between these files (EXDEV, ENOSYS and others), or the source ends
        // early (0). In both cases read it into memory, which reports the cause.
        may_copy_ = false;
        break;
      }
      done += static_cast<std::uint64_t>(n);
      result_.copied += static_cast<std::uint64_t>(n);
      progress_(static_cast<std::uint64_t>(n));
    }
    if (done < extent.length) through_memory(at + done, extent.length - done);
  }

  void through_memory(std::uint64_t at, std::uint64_t length) {
    buffer_.resize(static_cast<std::size_t>(
        std::min(kMemoryBytes, std::max<std::uint64_t>(length, buffer_.size()))));
    for (const std::uint64_t end = at + length; at < end;) {
      const auto some = static_cast<std::size_t>(std::min<std::uint64_t>(buffer_.size(), end - at));
      const std::span<std::byte> chunk = std::span(buffer_).first(some);
      if (const int error = reader_.copy(at, chunk)) return fail(error, true);
      if (is_file_ && ::lseek(fd_, static_cast<off_t>(at), SEEK_SET) < 0) return fail(errno, false);
      if (const int error = write_exact(fd_, chunk)) return fail(error, false);
      at += some;
      result_.copied += some;
      progress_(some);
    }
  }

  const Content& content_;
  SequentialReader reader_;
  const std::atomic<bool>* stop_;
  int fd_;
  const std::function<void(std::uint64_t)>& progress_;
  bool is_file_ = false;
  bool may_share_ = true;
  bool may_copy_ = true;
  std::vector<std::byte> buffer_;
  Written result_;
};

}  // namespace

ByteRange shareable_part(std::uint64_t at, const Extent& extent) {
  const std::uint64_t lead = (kShareBlock - at % kShareBlock) % kShareBlock;
  if (at % kShareBlock != extent.offset % kShareBlock || extent.length <= lead) return {lead, 0};
  return {lead, (extent.length - lead) / kShareBlock * kShareBlock};
}

Written write_content(const Content& content, int fd,
                      const std::function<void(std::uint64_t bytes)>& progress,
                      const std::atomic<bool>* stop) {
  return Writer(content, fd, progress, stop).run();
}

bool can_share(const Extent& extent, int fd) {
  if (extent.source == nullptr || extent.source->local_file() == nullptr) return false;
  const ByteRange part = shareable_part(extent.offset, extent);
  return part.length > 0 && share(extent.part(part.offset, kShareBlock), fd, 0) == 0;
}

}  // namespace stfs
