// A source: one version of some bytes. A local file is one (local_file.h). Whatever reads, checks
// or sends bytes uses this interface, and does not know which kind it has.
//
// A version never changes. When the bytes behind a source do, verify() and every read answer
// ESTALE, for ever: no reader gets bytes of two versions.
//
// Thread safety: all const members may be called from any thread. Lifetime: a source outlives every
// recipe that has an extent of it, and every Pinned.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <span>
#include <string>
#include <vector>

namespace stfs {

struct Version {
  std::uint64_t size = 0;  // bytes
  timespec mtime{};        // for ls(1)
  // Says which bytes these are: two sources of equal tokens have the same bytes. To be compared and
  // printed, never parsed. Printable ASCII.
  std::string token;
};

// Bytes [offset, offset + length) of a source.
struct ByteRange {
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
};

// Keeps the bytes of a source from changing while it lives. Empty where that cannot be had.
struct Pinned {
  const std::byte* data = nullptr;  // byte 0 of the source
  std::shared_lock<std::shared_mutex> guard;

  explicit operator bool() const { return data != nullptr; }
};

class Source {
 public:
  Source(const Source&) = delete;
  Source& operator=(const Source&) = delete;
  virtual ~Source() = default;

  // Where it can be opened again: an absolute path.
  const std::string& path() const { return path_; }
  const Version& version() const { return version_; }
  std::uint64_t size() const { return version_.size; }
  const timespec& mtime() const { return version_.mtime; }

  // Whether a range is on this machine, so that reading it waits for no network.
  virtual bool has(ByteRange range) const = 0;
  // Has a range brought here. `ready` is called once, with 0 or an errno: before this returns or
  // later, on a thread that may then read what has come. It is not called when this throws
  // std::bad_alloc.
  using Ready = std::function<void(int error)>;
  virtual void want(ByteRange range, Ready ready) const = 0;

  // Fills `buffer` from `offset`; 0, or the errno of the read. The bytes are of this version only
  // if verify() says so afterwards: for many reads that are verified together.
  virtual int read_unverified(std::span<std::byte> buffer, std::uint64_t offset) const = 0;
  // The same for a reply. Where the disk must be asked, the kernel sees one sequential reader at a
  // time and reads ahead for it.
  virtual int read_ahead(std::span<std::byte> buffer, std::uint64_t offset) const = 0;
  // The same, verified: 0, ESTALE when the version is gone, or the errno of the read (EIO).
  int read(std::span<std::byte> buffer, std::uint64_t offset) const;

  // Whether a range may be sent from memory: try_pin() is likely to succeed, and every page is at
  // hand. Otherwise the reply would wait for the disk, and a writer for the reply.
  virtual bool can_pin(ByteRange range) const = 0;
  // For the kernel to send from, and for nothing else: a load from a file that was truncated is
  // SIGBUS, where the kernel answers EFAULT. A thread pins a source once at a time.
  virtual Pinned try_pin() const = 0;

  // 0 while the source is this version; ESTALE from the first time it is not, for ever. Any other
  // errno: the question was not answered. Ask before bytes are sent, and after bytes are read.
  // Takes under a microsecond on a local disk, and as long as a read elsewhere.
  virtual int verify() const = 0;
  // Whether opening its path now would give this version again: it may have been replaced by
  // rename.
  virtual bool is_current() const = 0;
  bool has_changed() const { return changed_.load(std::memory_order_relaxed); }  // verify() saw it
  // As if verify() had seen it: another process did.
  void mark_changed() const { changed_.store(true, std::memory_order_relaxed); }

  // A failed read of a range; of the attributes, when the range is empty. ESTALE comes from the
  // file system, or from a file that ends too early: then has_changed() is true.
  struct Failure {
    std::uint64_t begin, end;
    int error;
    bool is_last;  // later ones are not kept
  };
  // The next one that nobody has taken yet. Failures less than a MiB apart count as one, and a
  // source keeps kMaxFailures at most, however much of it is lost.
  std::optional<Failure> take_failure() const;
  static constexpr std::size_t kMaxFailures = 8;
  // All of them, taken or not, in the order in which they happened.
  std::vector<Failure> failures() const;
  // As if these had happened and been taken: in another process. Before anything is read here.
  void mark_failed(std::span<const Failure> failures) const;

 protected:
  explicit Source(std::string path) : path_(std::move(path)) {}
  void set_version(Version version) { version_ = std::move(version); }  // in the constructor
  void note_failure(std::uint64_t begin, std::uint64_t end, int error) const;

 private:
  struct Failures {
    std::mutex mutex;
    std::array<Failure, kMaxFailures> all{};
    std::size_t count = 0;
    std::size_t taken = 0;
  };

  std::string path_;
  Version version_;
  mutable std::atomic<bool> changed_ = false;
  mutable Failures failures_;
};

// Opens what a path names. Throws Error kUnreadable.
std::unique_ptr<const Source> open_source(const std::string& path);

}  // namespace stfs
