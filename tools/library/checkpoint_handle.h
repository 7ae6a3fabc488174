// A checkpoint that a program has opened through libstfs: the C++ implementation of stfs.h, which
// has the contracts of the functions.
//
// After fork(2) a child has none of its parent's threads and must not use its connections. It makes
// its own objects for everything that has a lock. If all tensors are stored in local files, the
// child uses the parent's checkpoint. If there are remote sources or computed tensors, the child
// loads the same versions again with the parent's resolutions (Sources::resolutions()). This is
// needed for computed tensors too, because threads that the child lacks may have locked their
// caches. A child never destroys objects that it has inherited.
//
//   Opened ──┬─ the first Loaded    of the process that opened it; its checkpoint has the names and
//            │                      shapes for all processes
//            └─ a child's Loaded    created when the child first needs bytes
//
// Thread safety: all members may be called from any thread. Lifetime: results are valid as long as
// the Opened.
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

// The C++ form of stfs_part.
struct PartOfTensor {
  std::uint32_t tensor = 0;
  PartOptions options = {};
};

class Opened {
 public:
  // Opens the sources. Throws Error, with errno ESTALE if they do not have OpenOptions::version.
  Opened(std::vector<std::string> sources, OpenOptions options);
  Opened(const Opened&) = delete;
  Opened& operator=(const Opened&) = delete;
  ~Opened();

  const Checkpoint& checkpoint() const { return *first_->checkpoint; }
  bool is_remote() const { return !resolutions_.empty(); }
  bool has_secrets() const { return has_secrets_; }  // a URL of a source or of a layer has a secret
  const std::string& version() const { return version_; }
  const std::vector<std::string>& pinned_sources() const { return pinned_; }
  const std::vector<std::string>& pinned_options() const { return pinned_options_; }

  // Returns the checkpoint as this process has loaded it. Use it for everything that may take a
  // lock or read a source. In a child, the first call may load the checkpoint, and throws Error if
  // that fails.
  const Checkpoint& checkpoint_here() const { return *loaded().checkpoint; }
  // Returns the recipe of a part, for its size, type and shape. Throws Error kUsage if the tensor
  // cannot be read in this way.
  PartRecipe recipe(const PartOfTensor& part) const { return recipe_of(checkpoint_here(), part); }

  // The functions below wait for bytes that are not local. They throw Error kUnreadable
  // with the errno of the failure.
  void read(const PartOfTensor& part, std::uint64_t offset, std::span<std::byte> out);
  // Returns the bytes of a tensor in a read-only mapping of its file, or nullptr if they are in no
  // file that can be mapped.
  const std::byte* map(std::uint32_t tensor, std::uint64_t offset, std::uint64_t length);
  // Returns private writable memory, and sets `data` to the first byte of the part in it.
  Memory map_private(const PartOfTensor& part, std::byte*& data);
  // Returns a mapping of the whole local file in which the tensor is stored. Empty if it is not
  // stored in a local file, or mmap(2) fails.
  Memory map_private_file(std::uint32_t tensor);

  std::string metadata_text(std::uint32_t entry);

  // Writes all tensors to a file or a directory, depending on the ending of the path
  // (core/write/save.h). Returns the number of bytes that are shared with the sources.
  struct SaveTo {
    std::string path;
    std::uint64_t shard_size;  // bytes; 0: one file
    bool replaces;             // replace an existing file
  };
  std::uint64_t save(const SaveTo& to);
  // Writes a delta from `before` to this checkpoint (core/write/delta.h). Sets the output, the
  // threads and the handling of signals in `options` itself.
  NewDelta save_delta(Opened& before, const std::string& directory, DeltaOptions options);
  // Returns a warning, or nullptr after the last one. The warnings of the checkpoint come first,
  // then the warnings that save() found in the files beside it.
  const char* warning(std::size_t index) const;

  void prefetch(std::uint32_t tensor);
  void cancel();

 private:
  // The checkpoint as one process has loaded it.
  struct Loaded {
    const std::uint64_t process = this_process();
    std::unique_ptr<Sources> sources;
    std::unique_ptr<const Checkpoint> own;  // null: the checkpoint is the parent's
    const Checkpoint* checkpoint = nullptr;
    // The mapped file of each part; null if it is not mapped yet.
    std::unique_ptr<std::atomic<std::byte*>[]> mapped;

    std::mutex mutex;  // guards the members below
    // The stop flags of calls that wait for the network.
    std::vector<std::atomic<bool>*> calls = {};
    std::map<const Source*, std::vector<std::shared_ptr<PrivateFile>>> lent = {};
    ~Loaded();
  };
  class Call;

  static std::unique_ptr<Loaded> load(std::span<const std::string> names,
                                      const OpenOptions& options, std::string_view resolutions);
  std::unique_ptr<Loaded> load_here() const;  // for a child
  Loaded& loaded() const;                     // this process has it; a child loads it first
  static Memory private_part(Loaded& from, const Extent& extent, int descriptor);
  static PartRecipe recipe_of(const Checkpoint& checkpoint, const PartOfTensor& part);
  // The functions below return 0 or an errno.
  int copy(Loaded& from, const Content& content, std::uint64_t offset,
           std::span<std::byte> out) const;
  int fetch(Loaded& from, const Extent& extent) const;
  // Loads the same version again together with the files that loaders need, for a new directory.
  // Throws Error with errno ESTALE if the version has changed.
  std::unique_ptr<const Checkpoint> with_model_files(const Loaded& from) const;
  // Keeps the warnings of a saved checkpoint that are not known yet.
  void keep_warnings(const Checkpoint& saved);
  // Runs `work`, which throws an Error soon after cancel() has set `stop`. The Error then becomes
  // kUnreadable with ECANCELED.
  void write_while_wanted(Loaded& from,
                          const std::function<void(const std::atomic<bool>& stop)>& work);
  // Runs `work`, which returns EINTR soon after cancel() has set `stop`.
  int wait_for(Loaded& from, const std::function<int(const std::atomic<bool>& stop)>& work) const;
  // Returns the mapping of the whole file of a part, which `descriptor` refers to, or nullptr if
  // mmap(2) fails.
  static std::byte* file_of(Loaded& from, std::uint32_t part, int descriptor);

  const std::vector<std::string> names_;  // as the caller gave them
  std::vector<std::string> again_;        // absolute, to load again in any working directory
  OpenOptions options_;
  Loaded* first_ = nullptr;                     // deleted only by the process that created it
  mutable std::atomic<Loaded*> own_ = nullptr;  // the Loaded of a child
  bool is_plain_ = false;                       // all tensors are stored in local files
  std::string resolutions_;  // Sources::resolutions() for children; "": all sources are local
  bool has_secrets_ = false;
  std::string version_;
  // The local files that the first Loaded has read. No output may replace one of them.
  std::vector<std::string> files_read_;
  mutable std::mutex saved_mutex_;  // guards saved_
  std::deque<std::string> saved_;   // warnings of save()
  std::vector<std::string> pinned_;
  std::vector<std::string> pinned_options_;
};

}  // namespace stfs
