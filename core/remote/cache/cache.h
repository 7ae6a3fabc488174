// The cache: a directory with fetched blocks of remote objects. Processes share it, and it outlives
// mounts. It is never trusted: a block counts as cached only if its checksum matches.
//
//   DIR/                     created with mode 0700; not used if another user owns it or can write
//                            to it, with the exception below
//     v1/entries/ID/         ID: SHA-256 of name and token of the version, 64 hex digits
//       id.json              the RemoteVersion, without secrets; its mtime is the time of last use
//       data                 sparse, of the object's size; block i is at i * kBlock
//       map                  also sparse: [ header of 64 bytes | 8 bytes for each block ]. The 8
//                            bytes are 0 if the block is absent, else its checksum. The header
//                            contains the ID
//     v1/CACHEDIR.TAG        makes backup programs skip v1; DIR may have other files
//     v1/names/HASH.json     the last known meaning of a name (a version, a listing): used with
//                            -o offline, and to ask a server only whether it is still current
//     v1/trash/              entries and files that are being created or removed
//
// The states of a block in the map, which all processes see:
//
//   absent ──claim──► claimed ──publish──► there ──check fails──► absent
//     ▲                  │ release, or the claiming process ends
//     └──────────────────┘
//
//   claim     Locks one byte of `map` for the block (fcntl(2), F_OFD_SETLK). The lock ends with its
//             process. Claims use a descriptor that the first claim opens, so that a supervisor
//             that forks holds no lock.
//   publish   Writes 8 aligned bytes at once, after all bytes of the block were written. There is
//             no fsync: after a power failure the map may be newer than the data, and then the
//             checksum does not match.
//   there     The block is never written again, and no hole is punched into it.
//
// Both files are accessed with pread(2) and pwrite(2), never mapped, so that neither a full disk
// nor another process that truncates a file causes SIGBUS. Replies are not sent from a mapping of
// `data` either: if the file is truncated, the kernel fills the rest of the last page with zeros,
// and a check before the reply cannot see a truncation during the reply. To look at the map costs
// less than a microsecond; callers remember the result.
//
// An entry is in use while a process holds a shared flock(2) on `data`. (On NFS, flock(2) locks all
// bytes of a file, so a lock on `map` would make every claim fail.) Eviction takes the least
// recently used entry that is not in use: it takes an exclusive flock without waiting, renames the
// entry into trash, and unlinks it. So bytes that a process reads are never evicted. An entry is
// created in trash, with the shared lock held, and renamed to its place when it is complete. On a
// file system without flock(2) nothing is evicted.
//
// If the user removes the directory, open files remain readable, and the next open() creates the
// directory again.
//
// A read-only directory provides the entries that it has, and writes return EROFS. A directory is
// read-only if its disk is mounted read-only. It is also read-only if this user cannot write to it,
// if only its owner can, and if it is not the user's default directory.
//
// The checksum of a block is XXH3 with 64 bits over its bytes, seeded with the entry's ID and the
// block's number; 0 is replaced by 1. It detects decay and mix-ups, but no attacker: only the user
// can write to the directory.
//
// Thread safety: all members may be called from any thread.
#pragma once

#include "core/base/posix.h"
#include "core/remote/stores/remote.h"

#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace stfs {

class CacheEntry {
 public:
  static constexpr std::uint64_t kBlock = Source::kFetchUnit;

  CacheEntry(const CacheEntry&) = delete;
  CacheEntry& operator=(const CacheEntry&) = delete;

  const RemoteVersion& version() const { return version_; }
  const std::string& id() const { return id_; }
  bool is_new() const { return is_new_; }  // created by this Cache::open()
  std::uint64_t blocks() const;            // number of blocks of the object
  ByteRange range_of(std::uint64_t block) const;

  // Returns true if the map has a checksum for the block. Does not check the bytes.
  bool is_there(std::uint64_t block) const;
  // Reads a block and compares its checksum. Returns 0, or ENODATA if the block is absent. Returns
  // EILSEQ if the checksum does not match or `data` is too short, or the errno of the read; the
  // block then becomes absent. `buffer` has kBlock bytes.
  int check(std::uint64_t block, std::span<std::byte> buffer) const;
  void forget(std::uint64_t block) const;  // makes the block absent

  // Claims a block for this object in this process. Returns false if another process has claimed
  // it. A block that is there needs no claim, so check is_there() again after a claim. The claim
  // does not exclude other threads that use this object; the caller has to. Returns true on a file
  // system without locks: then two processes may fetch a block at the same time.
  bool claim(std::uint64_t block) const;
  void release(std::uint64_t block) const;

  // Allocates disk space for a range and for its part of the map (fallocate(2)). Returns 0 or an
  // errno: ENOSPC, EDQUOT, EFBIG (RLIMIT_FSIZE), EIO, EROFS, or EINVAL if the range does not lie in
  // the object.
  int reserve(ByteRange range) const;
  // Writes all bytes of a block, then publishes it. Returns 0 or an errno.
  int write(std::uint64_t block, std::span<const std::byte> bytes) const;

  // Reads bytes of `data`, like pread_exact(). Also returns ESTALE if `data` was truncated, because
  // the bytes that were read may then be zeros.
  int read(std::span<std::byte> bytes, std::uint64_t offset) const;
  // Returns the descriptor of `data`, which is as long as the object. The entry owns the
  // descriptor.
  int descriptor() const { return data_fd_.get(); }
  // Returns how often `data` was found to occupy less disk space (st_blocks) than before. A part of
  // it was then cut off and added again, or a hole was punched, so any block may be zeros. The
  // blocks may also be intact, if the file system compresses; check() decides. A read() after the
  // loss counts it before it returns, unless another process has made the file grow by the same
  // amount in between.
  std::uint64_t losses() const { return losses_; }

 private:
  friend class Cache;
  CacheEntry() = default;

  std::uint64_t checksum_of(std::uint64_t block, std::span<const std::byte> bytes) const;
  int look_at_data() const;  // counts losses; returns 0, an errno, or ESTALE for another size

  RemoteVersion version_;
  std::string id_, directory_;
  bool is_new_ = false;
  std::uint64_t seed_ = 0;
  bool is_read_only_ = false;
  UniqueFd data_fd_, map_fd_;
  mutable std::atomic<std::uint64_t> on_disk_ = 0;  // st_blocks of `data` when it was last examined
  mutable std::atomic<std::uint64_t> losses_ = 0;
  mutable std::mutex claims_mutex_;
  mutable UniqueFd claims_fd_;
};

class Cache {
 public:
  struct Options {
    std::string directory;   // "": default_directory()
    std::uint64_t size = 0;  // maximum bytes of all entries; 0: limited only by the disk
    unsigned keep_free = 5;  // % of the disk that stays free
  };
  // Returns STFS_CACHE, else $XDG_CACHE_HOME/stfs, else .cache/stfs in $HOME or in the home
  // directory that the password database names; "" without a home directory.
  static std::string default_directory();

  // Does not throw if the directory cannot be used. unusable() then returns the reason, open()
  // returns null, and names are not remembered.
  explicit Cache(Options options);

  // Returns "" if the directory can be used, else the reason in one line, "place: rule".
  const std::string& unusable() const { return unusable_; }
  const std::string& directory() const { return options_.directory; }

  // Returns the entry of a version, and creates it if it does not exist (unless `existing`).
  // Returns null if that fails. Replaces a damaged entry (of another version, or with a map of
  // another size). Records the time of use.
  std::unique_ptr<CacheEntry> open(const RemoteVersion& version, bool existing = false);

  // Returns the JSON text that was remembered for a name (public_name()), or nullopt.
  std::optional<std::string> recall(const std::string& name) const;
  // Remembers a text for a name. Returns false if that fails.
  bool remember(const std::string& name, const std::string& json) const;
  void forget(const std::string& name) const;

  // Evicts entries until `bytes` more, and their part of a map, fit within the limits.
  // `was_refused`: the file system has just refused such a write, perhaps because of a quota or a
  // lack of inodes; then evicts at least one entry. Returns false if the bytes do not fit even so,
  // because the remaining entries are in use.
  bool make_room(std::uint64_t bytes, bool was_refused = false);

  struct Listed {
    std::string id;
    RemoteVersion version;
    std::uint64_t bytes;         // bytes on the disk, of all files of the entry
    std::uint64_t blocks_there;  // number of cached blocks
    timespec used;
    bool in_use;
  };
  std::vector<Listed> list() const;  // the most recently used first
  // Removes entries that are not in use, the least recently used first, until at most `bytes` are
  // left. Forgets the names of versions that have no entry, and all names if `bytes` is 0 and no
  // entry is left. Returns the number of bytes freed.
  std::uint64_t prune(std::uint64_t bytes);
  // Removes an entry. Returns false if it is in use.
  bool remove(const std::string& id);

 private:
  enum class Outcome { kDone, kAbsent, kBusy, kDamaged, kFailed };
  // An entry as eviction sees it.
  struct Place {
    std::string id;
    std::uint64_t bytes;
    timespec used;  // 0 for a damaged entry, which is evicted first
  };

  bool prepare();
  void prepare_again();
  Outcome open_place(const std::string& id, CacheEntry& entry) const;
  Outcome make_place(const std::string& id, CacheEntry& entry, int& error) const;
  std::optional<std::uint64_t> evict(const std::string& id) const;
  bool write_file(int directory, const char* name, const std::string& text) const;
  void discard(const std::string& name) const;
  void empty_trash() const;
  void forget_names(bool all) const;
  std::vector<Place> places() const;

  Options options_;
  std::string unusable_;
  bool is_named_ = false;      // STFS_CACHE or the option cache_dir names the directory
  uid_t owner_ = ::geteuid();  // only files of this user are trusted
  bool is_read_only_ = false;
  UniqueFd entries_, names_, trash_;  // directories
  std::mutex mutex_;                  // held during eviction; guards granted_
  std::uint64_t granted_ = 0;         // bytes that make_room() may grant without a new check
};

}  // namespace stfs
