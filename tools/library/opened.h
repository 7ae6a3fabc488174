// A checkpoint that a program has opened through libstfs: the C++ behind include/stfs.h, which says
// what the functions promise.
//
// A forked child has none of its parent's threads, and must not use its connections. What has its
// own lock, it has anew. Where all tensors stand in local files, the checkpoint works there as
// before. For sources elsewhere, and for computed tensors, whose caches may be locked by threads
// that the child lacks, it loads the same versions again: from what the parent knew of them. It
// never destroys what it inherited.
//
//   Opened ──┬─ the first Loaded    of the process that opened it; its checkpoint has names and
//   shapes
//            └─ a child's Loaded    made when the child first needs bytes
//
// Thread safety: all members. Lifetime: what they return lives as long as the Opened.
#pragma once

#include "core/base/forks.h"
#include "core/checkpoint/checkpoint.h"
#include "core/format/types.h"
#include "core/opened/part.h"
#include "core/remote/sources.h"
#include "core/write/delta.h"
#include "tools/library/memory.h"
#include "tools/library/open_options.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace stfs {

// stfs_part.
struct PartOfTensor {
  std::uint32_t tensor = 0;
  PartOptions options = {};
};

class Opened {
 public:
  // Throws Error.
  Opened(std::vector<std::string> sources, OpenOptions options);
  Opened(const Opened&) = delete;
  Opened& operator=(const Opened&) = delete;
  ~Opened();

  const Checkpoint& checkpoint() const { return *first_->checkpoint; }
  bool is_elsewhere() const { return !resolutions_.empty(); }
  bool has_secrets() const { return has_secrets_; }  // in URLs of sources and layers
  const std::string& version() const { return version_; }
  const std::vector<std::string>& pinned_sources() const { return pinned_; }
  const std::vector<std::string>& pinned_options() const { return pinned_options_; }

  // As this process has loaded it: what may lock something, or look at its sources.
  const Checkpoint& checkpoint_here() const { return *loaded().checkpoint; }
  // Throws Error kUsage for what cannot be read so. The recipe is for measuring.
  PartRecipe recipe(const PartOfTensor& part) const { return recipe_of(checkpoint_here(), part); }

  // The functions below wait for what is not on this machine. They throw Error kUnreadable with the
  // errno of what failed.
  void read(const PartOfTensor& part, std::uint64_t offset, std::span<std::byte> out);
  // The bytes of a tensor in its file; null where they are in none.
  const std::byte* map(std::uint32_t tensor, std::uint64_t offset, std::uint64_t length);
  // Private, writable. `data` is the first byte of the part.
  Memory map_private(const PartOfTensor& part, std::byte*& data);
  // The whole local file with the tensor's bytes; empty where there is none, or mmap(2) fails.
  Memory map_private_file(std::uint32_t tensor);

  std::string metadata_text(std::uint32_t entry);

  // Writes all tensors to a file or a directory, by the ending of its name
  // (core/write/saved.h), and returns the bytes that are shared with the sources.
  struct SaveTo {
    std::string path;
    std::uint64_t shard_size;  // bytes; 0: one file
    bool replaces;             // a file that exists
  };
  std::uint64_t save(const SaveTo& to);
  // Writes a delta from `before` to this checkpoint (core/write/delta.h). The output, the threads
  // and the signals of `options` are set here.
  NewDelta save_delta(Opened& before, const std::string& directory, DeltaOptions options);
  // Those of the checkpoint, then what save() found of files beside it; nullptr behind the last.
  const char* warning(std::size_t index) const;

  void prefetch(std::uint32_t tensor);
  void cancel();

 private:
  // The checkpoint as one process has loaded it.
  struct Loaded {
    const std::uint64_t process = this_process();
    std::unique_ptr<Sources> sources;
    std::unique_ptr<const Checkpoint> own;  // null: the checkpoint is its parent's
    const Checkpoint* checkpoint = nullptr;
    std::unique_ptr<std::atomic<std::byte*>[]> mapped;  // of each part: its file; null: not yet

    std::mutex mutex;                            // of the rest
    std::vector<std::atomic<bool>*> calls = {};  // that wait for a network
    std::map<const Source*, std::vector<std::shared_ptr<PrivateFile>>> lent = {};
    ~Loaded();
  };
  class Call;

  static std::unique_ptr<Loaded> load(std::span<const std::string> names,
                                      const OpenOptions& options, std::string_view resolutions);
  std::unique_ptr<Loaded> load_here() const;  // in a child
  Loaded& loaded() const;                     // of this process
  static Memory private_part(Loaded& from, const Extent& extent, int descriptor);
  static PartRecipe recipe_of(const Checkpoint& checkpoint, const PartOfTensor& part);
  // The functions below return 0 or an errno.
  int copy(Loaded& from, const Content& content, std::uint64_t offset,
           std::span<std::byte> out) const;
  int fetch(Loaded& from, const Extent& extent) const;
  // The same version with the files for loaders, which a directory gets too.
  std::unique_ptr<const Checkpoint> with_model_files(const Loaded& from) const;
  void keep_warnings(const Checkpoint& saved);
  void write_while_wanted(Loaded& from,
                          const std::function<void(const std::atomic<bool>& stop)>& work);
  // Runs the work, which returns EINTR soon after cancel() sets `stop`.
  int wait_for(Loaded& from, const std::function<int(const std::atomic<bool>& stop)>& work) const;
  // The mapping of a part's whole file, which has this descriptor; null where mmap(2) fails.
  static std::byte* file_of(Loaded& from, std::uint32_t part, int descriptor);

  const std::vector<std::string> names_;  // as they are given
  std::vector<std::string> again_;        // for later, wherever the process is then
  OpenOptions options_;
  Loaded* first_ = nullptr;                     // freed by the process that made it
  mutable std::atomic<Loaded*> own_ = nullptr;  // of the child
  bool is_plain_ = false;                       // all tensors stand in local files
  std::string resolutions_;                     // for children; "": all sources are local
  bool has_secrets_ = false;
  std::string version_;
  mutable std::mutex saved_mutex_;  // of saved_
  std::deque<std::string> saved_;   // warnings
  std::vector<std::string> pinned_;
  std::vector<std::string> pinned_options_;
};

}  // namespace stfs
