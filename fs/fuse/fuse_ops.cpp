#include "fs/fuse/fuse_ops.h"

#include "core/base/posix.h"
#include "core/base/while_wanted.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <limits>
#include <new>
#include <string>
#include <string_view>
#include <vector>

namespace stfs {
namespace {

// Timeouts of the kernel's caches. The tree never changes, so names, attributes and absent names
// stay valid.
constexpr double kForever = std::numeric_limits<double>::max();
// Looked-up names stay valid as well. Their entries expire all the same, so that the kernel repeats
// the lookup of names that are in use, and drops first the names that were not looked up for the
// longest time (looked_up.h).
constexpr double kLookedUp = 60;  // seconds
constexpr blksize_t kBlockSize = 4096;

FuseContext& context(fuse_req_t request) {
  return *static_cast<FuseContext*>(fuse_req_userdata(request));
}
FileSystem& filesystem(fuse_req_t request) { return *context(request).filesystem; }

// Runs the body of a callback, which replies to the request; an exception becomes an errno.
template <class Answer>
void guarded(fuse_req_t request, const Answer& answer) noexcept {
  Ledger* const ledger = context(request).ledger;
  try {
    answer();
  } catch (const std::bad_alloc&) {
    fuse_reply_err(request, ENOMEM);
  } catch (...) {
    fuse_reply_err(request, EIO);
  }
  if (ledger != nullptr) ledger->count_answer();
}

struct stat to_stat(const Attributes& attributes) {
  struct stat out {};
  out.st_ino = attributes.inode;
  out.st_mode = attributes.mode;
  out.st_nlink = attributes.links;
  out.st_uid = attributes.uid;
  out.st_gid = attributes.gid;
  out.st_size = static_cast<off_t>(attributes.size);
  out.st_blocks = static_cast<blkcnt_t>(attributes.blocks);
  out.st_blksize = kBlockSize;
  out.st_atim = out.st_mtim = out.st_ctim = attributes.mtime;
  return out;
}

double timeout_of(const Attributes& attributes) { return attributes.grows ? 0 : kForever; }

fuse_entry_param to_entry(const Attributes& attributes) {
  fuse_entry_param entry{};
  entry.ino = attributes.inode;
  entry.attr = to_stat(attributes);
  entry.attr_timeout = timeout_of(attributes);
  entry.entry_timeout = kForever;
  return entry;
}

void init(void* userdata, fuse_conn_info* connection) {
  auto& context = *static_cast<FuseContext*>(userdata);
  const auto want = [&](unsigned capability) {
    connection->want |= connection->capable & capability;
  };
  want(FUSE_CAP_ASYNC_READ);
  want(FUSE_CAP_PARALLEL_DIROPS);
  want(FUSE_CAP_READDIRPLUS);
  want(FUSE_CAP_READDIRPLUS_AUTO);
#ifdef FUSE_CAP_DIRECT_IO_ALLOW_MMAP
  want(FUSE_CAP_DIRECT_IO_ALLOW_MMAP);  // allow shared mappings even with page_cache=direct
#endif
  context.opendir_needed =
      context.has_private_listings || (connection->capable & FUSE_CAP_NO_OPENDIR_SUPPORT) == 0;
  // splice(2) would cost more than it saves, because replies come from memory and requests are
  // small. The kernel need not check size and times of a file in order to keep its pages, because
  // they never change.
  connection->want &= ~static_cast<unsigned>(FUSE_CAP_SPLICE_READ | FUSE_CAP_SPLICE_WRITE |
                                             FUSE_CAP_SPLICE_MOVE | FUSE_CAP_AUTO_INVAL_DATA);
  // The maximum number of readahead requests in flight. With the default of 12, one slow source
  // delays the reads of all others.
  connection->max_background = 1024;
  connection->congestion_threshold = 768;
  if (context.max_read != 0) connection->max_read = context.max_read;
  // The kernel uses the smaller one of this value and the readahead of the mount's device. Do not
  // limit the latter.
  connection->max_readahead = std::numeric_limits<unsigned>::max();
  context.max_write = connection->max_write;
}

void lookup(fuse_req_t request, fuse_ino_t parent, const char* name) {
  guarded(request, [&] {
    FileSystem& fs = filesystem(request);
    Attributes attributes{};
    const int error = fs.lookup(parent, name, attributes);
    fuse_entry_param entry{};  // inode 0: the kernel remembers that the name does not exist
    entry.entry_timeout = kForever;
    if (error == 0) entry = to_entry(attributes);
    if (error == 0 && fs.is_looked_up(attributes.inode)) entry.entry_timeout = kLookedUp;
    if (error != 0 && error != ENOENT) {
      fuse_reply_err(request, error);
    } else if (fuse_reply_entry(request, &entry) != 0 && error == 0) {
      fs.forget(attributes.inode, 1);  // the kernel did not receive the entry
    }
  });
}

void forget(fuse_req_t request, fuse_ino_t inode, std::uint64_t lookups) {
  filesystem(request).forget(inode, lookups);
  fuse_reply_none(request);
}
void forget_multi(fuse_req_t request, std::size_t count, fuse_forget_data* forgotten) {
  for (std::size_t i = 0; i < count; ++i) {
    filesystem(request).forget(forgotten[i].ino, forgotten[i].nlookup);
  }
  fuse_reply_none(request);
}

void getattr(fuse_req_t request, fuse_ino_t inode, fuse_file_info*) {
  guarded(request, [&] {
    const auto attributes = filesystem(request).attributes(inode);
    if (!attributes) {
      fuse_reply_err(request, ENOENT);
      return;
    }
    const struct stat status = to_stat(*attributes);
    fuse_reply_attr(request, &status, timeout_of(*attributes));
  });
}

void open(fuse_req_t request, fuse_ino_t inode, fuse_file_info* file) {
  guarded(request, [&] {
    const bool writes = (file->flags & O_ACCMODE) != O_RDONLY || (file->flags & O_TRUNC) != 0;
    file->fh = 0;
    const int error = writes ? EROFS : filesystem(request).open(inode, &file->fh);
    if (error != 0) {
      fuse_reply_err(request, error);
      return;
    }
    const bool is_computed = filesystem(request).is_computed(inode);
    // O_DIRECT bypasses the cache without direct_io, and the kernel then sends the parts of a large
    // read in parallel; with direct_io it does not.
    const bool reads_around = (file->flags & O_DIRECT) != 0;
    file->direct_io = is_computed || (context(request).direct && !reads_around) ? 1 : 0;
    file->keep_cache = 1;
    // If this fails, the kernel did not receive the answer, so it will not send RELEASE.
    if (fuse_reply_open(request, file) != 0) filesystem(request).release(inode, file->fh);
  });
}

void release(fuse_req_t request, fuse_ino_t inode, fuse_file_info* file) {
  guarded(request, [&] {
    filesystem(request).release(inode, file->fh);
    fuse_reply_err(request, 0);
  });
}

// Handles FUSE_INTERRUPT. An interrupted reader ends only after the answer, so cancel its request.
void interrupted(fuse_req_t request, void* ticket) {
  filesystem(request).cancel(reinterpret_cast<std::uintptr_t>(ticket));
}

enum class ReaderState { kThere, kKilled, kGone };

// Returns the state of the thread that reads, according to /proc. The thread is being killed if
// SIGKILL is pending; the kernel turns every signal that kills its process into SIGKILL. If nothing
// is known, the thread counts as present: the kernel passes 0 for a thread of another pid namespace
// (a container), and /proc may be hidden.
ReaderState state_of(pid_t thread) {
  if (thread == 0) return ReaderState::kThere;
  std::array<char, 32> path{};
  std::snprintf(path.data(), path.size(), "/proc/%d/status", thread);
  const UniqueFd status(::open(path.data(), O_RDONLY | O_CLOEXEC));
  std::array<char, 4096> bytes{};
  const ssize_t length = status ? ::read(status.get(), bytes.data(), bytes.size()) : 0;
  if (length <= 0) {
    return ::kill(thread, 0) != 0 && errno == ESRCH ? ReaderState::kGone : ReaderState::kThere;
  }
  const std::string_view text(bytes.data(), static_cast<std::size_t>(length));
  for (const std::string_view set : {"\nSigPnd:\t", "\nShdPnd:\t"}) {
    const std::size_t at = text.find(set);
    std::uint64_t pending = 0;
    if (at == std::string_view::npos) continue;
    const char* const digits = text.data() + at + set.size();
    std::from_chars(digits, text.data() + text.size(), pending, 16);
    if ((pending & std::uint64_t{1} << (SIGKILL - 1)) != 0) return ReaderState::kKilled;
  }
  return ReaderState::kThere;
}

// Returns true if a reader still waits for a reply that is being computed. A reader that catches a
// signal (a timer, a profiler) is still waiting, as it would for a disk; if its reply were given
// up, its next try would start from the beginning. The kernel sends no interrupt for readahead, nor
// for O_DIRECT. A read that bypasses the cache can outlive its thread only if it is asynchronous
// (io_submit, io_uring); other threads then wait for it. If the mount was handed over to another
// pid namespace, thread ids have no meaning here, so a thread that was never present (`was_there`
// is false) does not count as ended.
bool is_wanted(fuse_req_t request, bool is_cached, bool& was_there) {
  if (context(request).is_unmounted) return false;
  const ReaderState state = state_of(fuse_req_ctx(request)->pid);
  if (state == ReaderState::kThere) was_there = true;
  if (state == ReaderState::kGone) {
    return fuse_req_interrupted(request) == 0 && (!is_cached || !was_there);
  }
  return state == ReaderState::kThere;
}

void reply_read(fuse_req_t request, int error, std::span<const iovec> pieces) {
  if (error != 0) {
    fuse_reply_err(request, error);
    return;
  }
  // The kernel copies from the mapping. If the source is truncated now, writev(2) fails with
  // EFAULT, and the reader gets EIO.
  if (pieces.empty()) {
    fuse_reply_buf(request, nullptr, 0);
  } else if (pieces.size() == 1) {
    fuse_reply_buf(request, static_cast<const char*>(pieces[0].iov_base), pieces[0].iov_len);
  } else {
    fuse_reply_iov(request, pieces.data(), static_cast<int>(pieces.size()));
  }
}

void read(fuse_req_t request, fuse_ino_t inode, std::size_t size, off_t offset,
          fuse_file_info* file) {
  guarded(request, [&] {
    const bool is_cached = (file->flags & O_DIRECT) == 0 && !context(request).direct;
    const WhileWanted while_wanted([request, is_cached, was_there = false]() mutable {
      return is_wanted(request, is_cached, was_there);
    });
    filesystem(request).read(
        {inode, static_cast<std::uint64_t>(offset), size, file->fh, is_cached},
        [request](FileSystem::Ticket ticket) {
          fuse_req_interrupt_func(request, interrupted, reinterpret_cast<void*>(ticket));
        },
        [request](int error, const Reply& reply) { reply_read(request, error, reply.pieces()); });
  });
}

void opendir(fuse_req_t request, fuse_ino_t, fuse_file_info* directory) {
  // After ENOSYS the kernel sends no more opendir requests, and caches listings.
  if (!context(request).opendir_needed) {
    fuse_reply_err(request, ENOSYS);
    return;
  }
  directory->cache_readdir = 1;
  directory->keep_cache = 1;
  fuse_reply_open(request, directory);
}

// Replies with at most `size` bytes of entries. `add` writes an entry and returns the bytes it
// needs.
template <class Add>
void list(fuse_req_t request, fuse_ino_t inode, std::size_t size, off_t offset, const Add& add) {
  guarded(request, [&] {
    std::vector<char> buffer(size);
    std::size_t used = 0;
    const int error = filesystem(request).list(
        inode, static_cast<std::uint64_t>(offset), [&](const FileSystem::Entry& entry) {
          const std::size_t needed = add(buffer.data() + used, size - used, entry);
          if (needed > size - used) return false;
          used += needed;
          return true;
        });
    if (error != 0) {
      fuse_reply_err(request, error);
    } else {
      fuse_reply_buf(request, buffer.data(), used);
    }
  });
}

void readdir(fuse_req_t request, fuse_ino_t inode, std::size_t size, off_t offset,
             fuse_file_info*) {
  list(request, inode, size, offset, [&](char* to, std::size_t room, const auto& entry) {
    struct stat status {};
    status.st_ino = entry.inode;
    status.st_mode = entry.type;
    return fuse_add_direntry(request, to, room, entry.name, &status,
                             static_cast<off_t>(entry.next_offset));
  });
}

void readdirplus(fuse_req_t request, fuse_ino_t inode, std::size_t size, off_t offset,
                 fuse_file_info*) {
  list(request, inode, size, offset, [&](char* to, std::size_t room, const auto& entry) {
    const auto attributes = filesystem(request).attributes(entry.inode);
    const fuse_entry_param found = attributes ? to_entry(*attributes) : fuse_entry_param{};
    return fuse_add_direntry_plus(request, to, room, entry.name, &found,
                                  static_cast<off_t>(entry.next_offset));
  });
}

void statfs(fuse_req_t request, fuse_ino_t) {
  guarded(request, [&] {
    const Statistics statistics = filesystem(request).statistics();
    struct statvfs out {};
    out.f_bsize = out.f_frsize = kBlockSize;
    out.f_blocks = statistics.bytes / kBlockSize + (statistics.bytes % kBlockSize != 0 ? 1 : 0);
    out.f_files = statistics.files;
    out.f_namemax = 255;
    fuse_reply_statfs(request, &out);
  });
}

// Replies like getxattr(2): size 0 asks for the length; ERANGE if the buffer is too small.
void reply_xattr(fuse_req_t request, const std::string& value, std::size_t size) {
  if (size == 0) {
    fuse_reply_xattr(request, value.size());
  } else if (size < value.size()) {
    fuse_reply_err(request, ERANGE);
  } else {
    fuse_reply_buf(request, value.data(), value.size());
  }
}

void getxattr(fuse_req_t request, fuse_ino_t inode, const char* name, std::size_t size) {
  guarded(request, [&] {
    std::string value;
    if (const int error = filesystem(request).get_xattr(inode, name, value)) {
      fuse_reply_err(request, error);
    } else {
      reply_xattr(request, value, size);
    }
  });
}

void listxattr(fuse_req_t request, fuse_ino_t inode, std::size_t size) {
  guarded(request, [&] {
    std::string names;
    if (const int error = filesystem(request).list_xattr(inode, names)) {
      fuse_reply_err(request, error);
    } else {
      reply_xattr(request, names, size);
    }
  });
}

// Answers all operations that change the file system. On a read-only mount the kernel refuses them
// itself; they arrive here after root has remounted it read-write.
template <class... Arguments>
void refuse(fuse_req_t request, Arguments...) {
  fuse_reply_err(request, EROFS);
}

}  // namespace

const fuse_lowlevel_ops& fuse_operations() {
  static const fuse_lowlevel_ops operations = [] {
    fuse_lowlevel_ops ops{};
    ops.init = init;
    ops.lookup = lookup;
    ops.forget = forget;
    ops.forget_multi = forget_multi;
    ops.getattr = getattr;
    ops.open = open;
    ops.release = release;
    ops.read = read;
    ops.opendir = opendir;
    ops.readdir = readdir;
    ops.readdirplus = readdirplus;
    ops.statfs = statfs;
    ops.getxattr = getxattr;
    ops.listxattr = listxattr;

    ops.setattr = refuse;
    ops.mknod = refuse;
    ops.mkdir = refuse;
    ops.unlink = refuse;
    ops.rmdir = refuse;
    ops.symlink = refuse;
    ops.rename = refuse;
    ops.link = refuse;
    ops.write = refuse;
    ops.setxattr = refuse;
    ops.removexattr = refuse;
    ops.create = refuse;
    ops.fallocate = refuse;
    ops.copy_file_range = refuse;
    return ops;
  }();
  return operations;
}

}  // namespace stfs
