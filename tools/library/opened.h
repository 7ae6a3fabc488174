// A checkpoint that a program has opened through libstfs: the C++ behind include/stfs.h, which says
// what the functions promise.
//
// A forked child has none of its parent's threads, and must not use its connections. Tensors that
// stand in local files work there as before. For sources elsewhere, and for computed tensors, whose
// caches may be locked by threads that the child lacks, it loads the same versions again: from what
// the parent knew of them. It never destroys what it inherited.
//
//   Opened ──┬─ the first Loaded    names, shapes, local files: of this process and its children
//            └─ a child's Loaded    sources elsewhere: made when the child first needs bytes of
//            them
//
// Thread safety: all members. Lifetime: what they return lives as long as the Opened.
#pragma once

#include "core/checkpoint/checkpoint.h"
#include "core/format/types.h"
#include "core/recipe/content.h"
#include "core/remote/sources.h"
#include "tools/library/open_options.h"

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace stfs {

// stfs_part.
struct PartOfTensor {
  std::uint32_t tensor = 0;
  std::optional<std::string> slice = std::nullopt;
  bool as_f32 = false;
};

// A part, as a recipe.
struct PartRecipe {
  Content content;
  DType dtype;
  std::vector<std::uint64_t> shape;
};

// Private memory: a mapping of a file, or bytes that were read.
class Memory {
 public:
  Memory() = default;
  explicit Memory(std::size_t length);  // bytes; uninitialised
  // A copy-on-write mapping from `offset`, that of a page; empty where there can be none.
  static Memory mapped(int descriptor, off_t offset, std::size_t length);
  Memory(Memory&& other) noexcept
      : base_(std::exchange(other.base_, nullptr)), mapped_(std::exchange(other.mapped_, 0)) {}
  Memory& operator=(Memory&& other) noexcept {
    std::swap(base_, other.base_);
    std::swap(mapped_, other.mapped_);
    return *this;
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory();

  std::byte* data() const { return static_cast<std::byte*>(base_); }

 private:
  void* base_ = nullptr;
  std::size_t mapped_ = 0;  // bytes; 0: from malloc(3)
};

class Opened {
 public:
  // Asked by the calling thread while it waits for a network; true ends the call.
  using Interrupted = std::function<bool()>;

  // Throws Error.
  Opened(std::vector<std::string> sources, OpenOptions options, Interrupted interrupted);
  Opened(const Opened&) = delete;
  Opened& operator=(const Opened&) = delete;
  ~Opened();

  const Checkpoint& checkpoint() const { return *first_->checkpoint; }
  bool is_elsewhere() const { return !resolutions_.empty(); }
  const std::string& version() const { return version_; }
  const std::vector<std::string>& pinned_sources() const { return pinned_; }
  const std::vector<std::string>& pinned_options() const { return pinned_options_; }

  // Throws Error kUsage for what cannot be read so. The recipe is for measuring.
  PartRecipe recipe(const PartOfTensor& part) const { return recipe_of(checkpoint(), part); }

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
  // (core/checkpoint/saved.h), and returns the bytes that are shared with the sources.
  struct SaveTo {
    std::string path;
    std::uint64_t shard_size;  // bytes; 0: one file
    bool replaces;             // a file that exists
  };
  std::uint64_t save(const SaveTo& to);

  void prefetch(std::uint32_t tensor);
  void cancel();

 private:
  // The checkpoint as one process has loaded it.
  struct Loaded {
    pid_t process = 0;
    std::unique_ptr<Sources> sources;
    std::unique_ptr<const Checkpoint> checkpoint;
    std::unique_ptr<std::atomic<std::byte*>[]> mapped;  // of each part: its file; null: not yet

    std::mutex mutex;                            // of `calls`
    std::vector<std::atomic<bool>*> calls = {};  // that wait for a network
    ~Loaded();
  };
  class Call;

  static std::unique_ptr<Loaded> load(std::span<const std::string> names,
                                      const OpenOptions& options, std::string_view resolutions);
  std::unique_ptr<Loaded> load_first() const;
  // In a child its own, where sources are elsewhere.
  Loaded& loaded();
  static PartRecipe recipe_of(const Checkpoint& checkpoint, const PartOfTensor& part);
  // The functions below return 0 or an errno.
  int copy(Loaded& from, const Content& content, std::uint64_t offset,
           std::span<std::byte> out) const;
  int fetch(Loaded& from, const Extent& extent) const;
  // The same version with the files for loaders, which a directory gets too.
  std::unique_ptr<const Checkpoint> with_model_files(const Loaded& from) const;
  // Runs the work, which returns EINTR soon after `stop` is set: by cancel(), or because the user
  // wants it.
  int wait_for(Loaded& from, const std::function<int(const std::atomic<bool>& stop)>& work) const;
  // The mapping of a part's whole file, which has this descriptor; null where mmap(2) fails.
  static std::byte* file_of(Loaded& from, std::uint32_t part, int descriptor);

  const std::vector<std::string> names_;  // as they are given
  std::vector<std::string> again_;        // for later, wherever the process is then
  OpenOptions options_;
  const Interrupted interrupted_;
  Loaded* first_ = nullptr;             // freed by the process that made it
  std::atomic<Loaded*> own_ = nullptr;  // of the child
  std::string resolutions_;             // for children; "": all sources are local
  std::string version_;
  std::vector<std::string> pinned_;
  std::vector<std::string> pinned_options_;
};

}  // namespace stfs
