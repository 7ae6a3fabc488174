// A source: one version of some bytes, such as a local file (local_file.h). Code that reads, checks
// or sends bytes uses this interface for every kind of source.
//
// A version never changes. After verify() has found that the bytes of a source have changed,
// verify() and read() return ESTALE for ever. Therefore no reader gets bytes of two versions.
//
// Thread safety: all const members may be called from any thread. Lifetime: a source must outlive
// every Extent that refers to it and every Pinned of it.
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

// As long as this object exists, the bytes of its source do not change. It is empty if the source
// cannot be pinned.
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

  // Returns the absolute path, or the URL without secrets (url.h), with which the source can be
  // opened again.
  const std::string& path() const { return path_; }
  const Version& version() const { return version_; }
  std::uint64_t size() const { return version_.size; }
  const timespec& mtime() const { return version_.mtime; }
  // Returns a text that identifies the bytes: two sources with equal tokens have the same bytes.
  // Compare or print a token, but do not parse it. It consists of printable ASCII. The token of a
  // version may change, because it may contain the ctime of a file; verify() updates it.
  virtual std::string token() const = 0;

  // Sources that fetch do so in blocks of this size, which begin at multiples of it.
  static constexpr std::uint64_t kFetchUnit = 256 << 10;  // bytes
  // How often in a row a reader fetches bytes again that were evicted before it read them. There is
  // a bound because a file system may return EAGAIN for other reasons.
  static constexpr unsigned kMaxLost = 16;

  // Returns true if a range is local, so that reading it uses no network. The check is quick and
  // does not read the bytes. If they turn out to be damaged when they are read, the read returns
  // EAGAIN and the range is no longer local.
  virtual bool has(ByteRange range) const = 0;
  // Makes a range local. Calls `ready` exactly once, with 0 or an errno, either before want()
  // returns or later on a thread of the source. `ready` may read the range. If want() throws
  // std::bad_alloc, it does not call `ready`.
  using Ready = std::function<void(int error)>;
  virtual void want(ByteRange range, Ready ready) const = 0;

  // Returns true if every byte is local. Then has() is true for every range, and this is known
  // without a check.
  virtual bool is_complete() const { return true; }
  // Announces that a range will probably be read soon. A remote source fetches the range when no
  // want() needs the network, and does not report when the range has arrived.
  virtual void prefetch(ByteRange) const {}
  // Returns the maximum number of fetched bytes that the source keeps at a time.
  virtual std::uint64_t cache_capacity() const { return std::numeric_limits<std::uint64_t>::max(); }
  // Calls want() and waits for the result. Returns 0 or an errno. It is meant for loading and for
  // the threads of a tool. Do not call it on a thread that serves a mount.
  int fetch(ByteRange range) const;

  // The next three functions read bytes from `offset` on until `buffer` is full. The range must be
  // inside the source. They return 0 or the errno of the read. The first two require that the range
  // is local, and return EAGAIN if bytes are not local or no longer local: a source without a disk
  // cache keeps only a few bytes, and a cache may be damaged. Call want() again then.
  //
  // read_unverified() does not verify the version, so that a caller can verify once after many
  // reads. The bytes are of this version only if verify() returns 0 afterwards.
  virtual int read_unverified(std::span<std::byte> buffer, std::uint64_t offset) const = 0;
  // Like read_unverified(), but for replies of a mount: allows the kernel to read ahead for several
  // parallel readers.
  virtual int read_ahead(std::span<std::byte> buffer, std::uint64_t offset) const = 0;
  // Fetches and reads the bytes, again if bytes are evicted before they are read, and then calls
  // verify(). Returns ESTALE if the source is not this version any more. May wait for the network.
  // Fetches at most 8 MiB at a time.
  int read(std::span<std::byte> buffer, std::uint64_t offset) const;

  // Returns true if a range should be sent from memory, because every page is in memory and
  // try_pin() will probably succeed. Reading a page from the disk would delay the reply, and also
  // the writers that wait until the pin is dropped.
  virtual bool can_pin(ByteRange range) const = 0;
  // Pins the bytes so that the kernel can send them. Code of stfs must not load them: if the file
  // was truncated, a load raises SIGBUS, while the kernel returns EFAULT. A thread may hold at most
  // one pin of a source, because the lock is not recursive.
  virtual Pinned try_pin() const = 0;

  // Returns the local file that contains the bytes and that a lease protects from writers, or null
  // if there is no such file.
  virtual const LocalFile* local_file() const { return nullptr; }
  // Returns the descriptor of a file that contains a local range at the same offset as the source,
  // for mmap(2), or -1 if there is no such file. The source owns the descriptor.
  virtual int descriptor(ByteRange) const { return -1; }

  // Returns 0 as long as the source is this version, and ESTALE for ever after it has changed. Any
  // other errno means that the check itself failed. Call it before bytes are sent and after bytes
  // are read. It takes less than a microsecond on a local disk, and as long as a read on a remote
  // file system.
  virtual int verify() const = 0;
  // Returns true if opening path() now would give this version. Returns false after a rename has
  // replaced the file.
  virtual bool is_current() const = 0;
  // Returns true if a local file stands for a remote object, and has changed or was replaced.
  bool is_stale_copy() const;
  // Returns the SHA-256 of all bytes, 64 lower-case hex digits, if a server has published it, and
  // otherwise "".
  virtual std::string sha256() const { return ""; }
  // Returns the reason why the last want() failed or why the source counts as changed, as one
  // printable line without secrets. Returns "" if the errno says as much.
  virtual std::string failure_text() const;
  // Records that the bytes do not have the digest sha256(). verify() then returns ESTALE, so that
  // even local bytes are no longer served. A class whose sha256() is not empty must check
  // is_refused() in verify().
  void refuse() const { refused_.store(true, std::memory_order_relaxed); }
  bool is_refused() const { return refused_.load(std::memory_order_relaxed); }
  bool has_changed() const {
    return changed_->load(std::memory_order_relaxed);
  }  // seen by verify()
  // Records a change that other code has found. failure_text() then returns `why`, unless it has a
  // text already.
  void mark_changed(const std::string& why = "") const;
  // Stores has_changed() in `shared` from now on. This memory is shared with processes that are
  // forked later, and must outlive the source. Call it before other threads use the source.
  void share_change_flag(std::atomic<bool>& shared) const {
    if (has_changed()) shared = true;
    changed_ = &shared;
  }

  // A failed read of bytes [begin, end). begin == end means that verify() could not get the
  // attributes. `error` is ESTALE if the file system returned ESTALE or if the file ended too
  // early; in the second case has_changed() is true.
  struct Failure {
    std::uint64_t begin, end;
    int error;
    bool is_last;  // the source records no later failures
  };
  // Returns each failure once, for the log. Failures with the same errno that are less than 1 MiB
  // apart count as one failure. A source records only the first kMaxFailures.
  std::optional<Failure> take_failure() const;
  static constexpr std::size_t kMaxFailures = 8;
  void record_failure(std::uint64_t begin, std::uint64_t end, int error) const;
  // Returns all failures in the order in which they happened, including those that take_failure()
  // has returned.
  std::vector<Failure> failures() const;
  // Records failures that another process had and has logged. Call it before the first read.
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

// Throws Error kUnreadable with the message "place: subject: why" for a read of a source that
// failed with `error`.
[[noreturn]] void throw_read_failure(const Source& source, const std::string& place,
                                     const std::string& subject, int error);

// Opens the file at a path as a LocalFile. Throws Error kUnreadable.
std::unique_ptr<const Source> open_source(const std::string& path);

}  // namespace stfs
