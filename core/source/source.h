// A source: one version of some bytes, such as a local file (local_file.h). Code that reads, checks
// or sends bytes uses this interface for every kind of source.
//
// A version never changes. Once verify() saw that the bytes behind a source changed, verify() and
// read() return ESTALE for ever: no reader gets bytes of two versions.
//
// Thread safety: all const members may be called from any thread. Lifetime: a source outlives every
// Extent of it and every Pinned.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <span>
#include <string>
#include <vector>

namespace stfs {

class LocalFile;

struct Version {
  std::uint64_t size = 0;  // bytes
  timespec mtime{};        // for ls(1)
};

// Bytes [offset, offset + length) of a source.
struct ByteRange {
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
};

// While it lives, the bytes of its source do not change. Empty when the source cannot be pinned.
struct Pinned {
  const std::byte* data = nullptr;  // byte 0 of the source; owned by the source
  std::shared_lock<std::shared_mutex> guard;

  explicit operator bool() const { return data != nullptr; }
};

class Source {
 public:
  Source(const Source&) = delete;
  Source& operator=(const Source&) = delete;
  virtual ~Source() = default;

  // The absolute path, or the URL without secrets (url.h), from which it can be opened again.
  const std::string& path() const { return path_; }
  const Version& version() const { return version_; }
  std::uint64_t size() const { return version_.size; }
  const timespec& mtime() const { return version_.mtime; }
  // Identifies the bytes: two sources with equal tokens have the same bytes. Opaque: compare and
  // print it, never parse it. Printable ASCII. The same version may get another token: verify()
  // brings it up to date.
  virtual std::string token() const = 0;

  // Sources that fetch do so in blocks of this size, which begin at multiples of it.
  static constexpr std::uint64_t kFetchUnit = 256 << 10;  // bytes
  // How often in a row a reader asks again for bytes that went away before it read them. A bound,
  // since a file system may give EAGAIN for reasons of its own.
  static constexpr unsigned kMaxLost = 16;

  // Whether a range is on this machine: reading it then uses no network. A quick look: what turns
  // out to be damaged when it is read is not here any more (EAGAIN).
  virtual bool has(ByteRange range) const = 0;
  // Fetches a range to this machine. Calls `ready` exactly once, with 0 or an errno: before want()
  // returns, or later on a thread of the source, which may then read the range. Throws
  // std::bad_alloc without calling it.
  using Ready = std::function<void(int error)>;
  virtual void want(ByteRange range, Ready ready) const = 0;

  // Whether every byte is on this machine: has() is true for every range, without looking.
  virtual bool is_complete() const { return true; }
  // Says that a range will probably be read soon. A source that fetches begins with it when nothing
  // is wanted, and does not say when it has come.
  virtual void prefetch(ByteRange) const {}
  // Bytes that it keeps at a time once they have come.
  virtual std::uint64_t cache_capacity() const { return std::numeric_limits<std::uint64_t>::max(); }
  // want(), and waits: 0 or an errno. For loading, and for threads of a tool; never on a thread of
  // the mount.
  int fetch(ByteRange range) const;

  // The readers fill `buffer` from `offset`; the range must lie inside the source and, where has()
  // is false, want() must have brought it. They return 0 or the errno of the read; EAGAIN when
  // bytes are not here, or not any more (a source without a disk keeps few; a cache may be
  // damaged): want() brings them again.
  //
  // Does not verify, so that a caller can verify many reads at once: the bytes are of this version
  // only if verify() returns 0 afterwards.
  virtual int read_unverified(std::span<std::byte> buffer, std::uint64_t offset) const = 0;
  // As read_unverified(), for a reply: lets the kernel read ahead of parallel readers.
  virtual int read_ahead(std::span<std::byte> buffer, std::uint64_t offset) const = 0;
  // Fetches and reads, again while bytes go away before they were read, then verify(): ESTALE when
  // the version is gone. Waits. Wants at most 8 MiB at a time.
  int read(std::span<std::byte> buffer, std::uint64_t offset) const;

  // Whether to send a range from memory: every page is in memory, and try_pin() will probably
  // succeed. A page on the disk would hold up the reply, and so the writers that wait for the pin.
  virtual bool can_pin(ByteRange range) const = 0;
  // Pins the bytes for the kernel to send. Our code must not load them: if the file was truncated,
  // a load raises SIGBUS, while the kernel returns EFAULT. A thread holds one pin of a source at
  // most: the lock is not recursive.
  virtual Pinned try_pin() const = 0;

  // The file of this machine that has the bytes, and of which a lease keeps writers away; null for
  // none.
  virtual const LocalFile* local_file() const { return nullptr; }
  // The descriptor of a file in which a range that want() has brought stands at its offset, for
  // mmap(2); -1 for none. The source owns it.
  virtual int descriptor(ByteRange) const { return -1; }

  // Returns 0 while the source is this version, and ESTALE for ever once it is not. Any other errno
  // means that the check itself failed. Call it before bytes are sent and after bytes are read.
  // Takes less than a microsecond on a local disk, and as long as a read on a remote file system.
  virtual int verify() const = 0;
  // Whether opening path() now would give this version; false after a rename replaced the file.
  virtual bool is_current() const = 0;
  // The SHA-256 of all bytes, 64 lower-case hex digits, where somebody told it; else "".
  virtual std::string sha256() const { return ""; }
  // Why a want() failed last, or why the source counts as changed, in one printable line without
  // secrets, where that says more than its errno; else "".
  virtual std::string failure_text() const;
  // Records that the bytes are not those that sha256() promised: verify() is ESTALE from then on,
  // and so no byte that is here is served any more. A kind of source whose sha256() is not empty
  // asks is_refused() in verify().
  void refuse() const { refused_.store(true, std::memory_order_relaxed); }
  bool is_refused() const { return refused_.load(std::memory_order_relaxed); }
  bool has_changed() const {
    return changed_->load(std::memory_order_relaxed);
  }  // seen by verify()
  // Records a change that was seen elsewhere. `why` is the text of failure_text() from then on,
  // where there is none yet.
  void mark_changed(const std::string& why = "") const;
  // Keeps has_changed() in memory that processes forked later share, and that outlives this. Call
  // it before other threads use the source.
  void share_change_flag(std::atomic<bool>& shared) const {
    if (has_changed()) shared = true;
    changed_ = &shared;
  }

  // A failed read of bytes [begin, end); begin == end when verify() could not get the attributes.
  // `error` is ESTALE when the file system reported it, or when the file ended too early;
  // has_changed() is true in the second case.
  struct Failure {
    std::uint64_t begin, end;
    int error;
    bool is_last;  // the source records no later failures
  };
  // Returns each failure once, for the log. Failures with the same errno less than 1 MiB apart are
  // one; a source records the first kMaxFailures.
  std::optional<Failure> take_failure() const;
  static constexpr std::size_t kMaxFailures = 8;
  void record_failure(std::uint64_t begin, std::uint64_t end, int error) const;
  // All failures, taken or not, in the order in which they happened.
  std::vector<Failure> failures() const;
  // Records failures that another process saw and took. Call it before the first read.
  void restore_failures(std::span<const Failure> failures) const;

 protected:
  explicit Source(std::string path) : path_(std::move(path)) {}
  void set_version(Version version) { version_ = version; }  // constructors only

 private:
  struct Failures {
    std::mutex mutex;
    std::array<Failure, kMaxFailures> all{};
    std::size_t count = 0;
    std::size_t taken = 0;
    std::string why;
  };

  std::string path_;
  Version version_;
  mutable std::atomic<bool> own_change_ = false;
  mutable std::atomic<bool>* changed_ = &own_change_;
  mutable std::atomic<bool> refused_ = false;
  mutable Failures failures_;
};

// Throws Error kUnreadable for a read of a source that failed with `error`: "place: subject: why".
[[noreturn]] void throw_read_failure(const Source& source, const std::string& place,
                                     const std::string& subject, int error);

// Opens the source at a path: a LocalFile. Throws Error kUnreadable.
std::unique_ptr<const Source> open_source(const std::string& path);

}  // namespace stfs
