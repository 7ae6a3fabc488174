// The cache: a directory with the blocks of remote objects that were fetched, shared by processes,
// kept over mounts. It is never trusted: a block counts only if its checksum fits.
//
//   DIR/                     0700, owned by this user: else it is not used
//     v1/entries/ID/         ID: SHA-256 of name and token of the version, 64 hex digits
//       id.json              the RemoteVersion, without secrets; its mtime: when last used
//       data                 sparse, of the object's size; block i at i * kBlock
//       map                  sparse too: [ header of 64 bytes | 8 bytes for each block ]: 0 absent,
//                            else the block's checksum. The header says whose map it is
//     v1/CACHEDIR.TAG        backup programs skip v1; DIR may have other files
//     v1/names/HASH.json     what a name meant when last asked (a version, a listing): for -o
//                            offline, and to ask whether it still does
//     v1/trash/              entries and files that are being made or removed
//
// The states of a block in the map, which all processes see:
//
//   absent ──claim──► claimed ──publish──► there ──check fails──► absent
//     ▲                  │ release, or the claiming process ends
//     └──────────────────┘
//
//   claim     a lock of one byte of `map` for each block (fcntl(2), F_OFD_SETLK): dies with its
//             process. Taken on a descriptor that is opened by the first claim, so that a fork of a
//             supervisor holds none
//   publish   one write of 8 aligned bytes, after all bytes of the block were written. There is no
//             fsync: after a power failure the map may be newer than the data, and the checksum
//             tells
//   there     never written again, never punched
//
// Both files are read and written by pread(2) and pwrite(2), never mapped: so neither a file that
// another process truncates nor a full disk raises SIGBUS. Nor are replies sent from a mapping of
// `data`: when it is truncated, the kernel fills the rest of the last page with zeros, and no check
// before the reply sees what happens during it. A look at the map costs less than a microsecond;
// callers keep the answer.
//
// An entry is in use while a process has `data` locked with a shared flock(2). (On NFS, flock(2)
// locks all bytes of a file: on `map` it would refuse every claim.) Eviction takes the least
// recently used entry that nobody uses: an exclusive flock without waiting, rename to trash,
// unlink. So bytes that a process reads never go away under it. An entry is made in trash, with the
// shared lock held, and renamed to its place when it is whole. On a file system without flock(2)
// nothing is evicted.
//
// When the user removes the directory, what is open stays readable, and the next open() makes the
// directory again.
//
// A read-only directory gives the entries that it has; writes return EROFS. Such is one on a disk
// that is mounted so, and one that the user cannot write, if only its owner can and it is not the
// user's default directory.
//
// Checksum of a block: XXH3 of 64 bits over its bytes, seeded with the entry's ID and the block's
// number; 0 is replaced by 1. It finds decay and mix-ups, but no attacker: only the user may
// write here.
//
// Thread safety: all members.
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
  bool is_new() const { return is_new_; }  // Cache::open() made it
  std::uint64_t blocks() const;            // of the object
  ByteRange range_of(std::uint64_t block) const;

  bool is_there(std::uint64_t block) const;
  // Reads a block and compares its checksum: 0; EILSEQ when it does not fit or `data` is too short,
  // or the errno of the read, and the block is then absent; ENODATA for a block that was absent.
  // `buffer` has kBlock bytes.
  int check(std::uint64_t block, std::span<std::byte> buffer) const;
  void forget(std::uint64_t block) const;  // makes it absent

  // Claims a block for this object of this process, or returns false: another has it. A block that
  // is there need not be claimed: look again after a claim. An object does not exclude itself: its
  // threads do. True on a file system without locks: a block is then fetched twice at worst.
  bool claim(std::uint64_t block) const;
  void release(std::uint64_t block) const;

  // Makes room on the disk for a range and its part of the map (fallocate(2)): 0, or an errno:
  // ENOSPC, EDQUOT, EFBIG (RLIMIT_FSIZE), EIO, EROFS.
  int reserve(ByteRange range) const;
  // Writes all bytes of a block, and then publishes it: 0 or an errno.
  int write(std::uint64_t block, std::span<const std::byte> bytes) const;

  // As pread_exact(); ESTALE also when `data` was truncated meanwhile: what was read may be zeros.
  int read(std::span<std::byte> bytes, std::uint64_t offset) const;
  int descriptor() const { return data_fd_.get(); }  // of `data`, which is as long as the object
  // How often `data` was seen to take less room on the disk than before (st_blocks): a part was cut
  // off and added again, or a hole punched, and any block may be zeros. Or it is there all the
  // same, as where a file system compresses: check() tells. Counted before a read() that comes
  // after the loss returns, unless another process has made the file grow by as much in between.
  std::uint64_t losses() const { return losses_; }

 private:
  friend class Cache;
  CacheEntry() = default;

  std::uint64_t checksum_of(std::uint64_t block, std::span<const std::byte> bytes) const;
  int look_at_data() const;  // counts losses; 0, an errno, or ESTALE for another size

  RemoteVersion version_;
  std::string id_, directory_;
  bool is_new_ = false;
  std::uint64_t seed_ = 0;
  bool is_read_only_ = false;
  UniqueFd data_fd_, map_fd_;
  mutable std::atomic<std::uint64_t> on_disk_ = 0;  // st_blocks of `data` at the last look
  mutable std::atomic<std::uint64_t> losses_ = 0;
  mutable std::mutex claims_mutex_;
  mutable UniqueFd claims_fd_;
};

class Cache {
 public:
  struct Options {
    std::string directory;   // "" : default_directory()
    std::uint64_t size = 0;  // bytes of all entries; 0: no bound but the disk's
    unsigned keep_free = 5;  // per cent of the disk
  };
  // STFS_CACHE, else $XDG_CACHE_HOME/stfs, else $HOME/.cache/stfs, else that of the password
  // database; "" when there is none.
  static std::string default_directory();

  // Never throws for a directory that cannot be used: usable() then says why, entries are not
  // given, and names are not kept.
  explicit Cache(Options options);

  // "" when it can be used; else one line, "place: rule".
  const std::string& unusable() const { return unusable_; }
  const std::string& directory() const { return options_.directory; }

  // The entry of a version, made if it is not there (unless `existing`); null when it cannot be.
  // An entry that is damaged (of another version, a map of another size) is replaced. Notes the
  // use.
  std::unique_ptr<CacheEntry> open(const RemoteVersion& version, bool existing = false);

  // The JSON text that was remembered for a name (public_name()), or nullopt.
  std::optional<std::string> recall(const std::string& name) const;
  bool remember(const std::string& name, const std::string& json) const;  // whether it did
  void forget(const std::string& name) const;

  // Evicts until `bytes` more, and their part of a map, fit under the bounds. `was_refused`: the
  // file system refused as much, perhaps for a quota or a lack of inodes; then at least one entry
  // goes. False when they do not fit all the same: what is left is in use.
  bool make_room(std::uint64_t bytes, bool was_refused = false);

  struct Listed {
    std::string id;
    RemoteVersion version;
    std::uint64_t bytes;         // on the disk, of the blocks that are there
    std::uint64_t blocks_there;  // of version.size
    timespec used;
    bool in_use;
  };
  std::vector<Listed> list() const;  // the most recently used first
  // Removes entries that nobody uses, the least recently used first, until at most `bytes` are
  // left. Forgets the names of what has no entry; all names when no entry is left. Returns the
  // bytes that were freed.
  std::uint64_t prune(std::uint64_t bytes);
  // Removes one that nobody uses. False when it is in use.
  bool remove(const std::string& id);

 private:
  enum class Outcome { kDone, kAbsent, kBusy, kDamaged, kFailed };
  // An entry as eviction sees it.
  struct Place {
    std::string id;
    std::uint64_t bytes;
    timespec used;  // 0 for an entry that is damaged: it goes first
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
  bool is_named_ = false;      // STFS_CACHE or cache_dir names it
  uid_t owner_ = ::geteuid();  // of all that is believed
  bool is_read_only_ = false;
  UniqueFd entries_, names_, trash_;  // directories
  std::mutex mutex_;                  // of eviction, and of:
  std::uint64_t granted_ = 0;         // bytes that make_room() may grant without looking
};

}  // namespace stfs
