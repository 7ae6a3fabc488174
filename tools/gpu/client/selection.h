// Turns the tensors that a command line or a caller of the library names into items.
//
//   /mnt/w/model.norm.weight            a file of a mount: a tensor; also below .stfs/, in the
//                                       views that show a tensor's bytes or values
//   /mnt/w/model/layers                 a directory of a mount: every tensor below it
//   model.safetensors                   a checkpoint: all its tensors; it may also be an index or a
//                                       directory
//   model.safetensors::model.norm.weight   SOURCE::NAME; otherwise SOURCE::GLOB
//   hf://org/name, https://host/m.safetensors::NAME   the same for a remote source, which ends
//                                       before the first "::" after the host
//
// The extended attributes of a file in a mount name the source, the tensor, its part and the type
// that it is shown as. The source must still have the version that was mounted. The file of a
// computed tensor names no source: its tensor is looked up in the mount's sources with the mount's
// layers.
#pragma once

#include "core/base/error.h"
#include "core/checkpoint/checkpoint.h"
#include "core/checkpoint/mount_source.h"
#include "core/remote/sources.h"
#include "tools/gpu/protocol/item.h"

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace stfs::gpu {

// The part of a tensor that one rank gets if the tensor is divided along a dimension:
// RANK/WORLD@DIM.
struct Shard {
  std::uint64_t rank = 0;
  std::uint64_t world = 1;
  std::uint64_t dimension = 0;
};
Shard parse_shard(const std::string& text);  // throws Error kUsage

struct SelectionOptions {
  std::optional<DType> as;
  std::optional<Shard> shard;
  Layers layers;  // applied to the whole checkpoint or mount that is named
  // If true, a tensor without the shard's dimension is loaded whole, and a tensor that cannot be
  // converted to `as` is loaded in its own type. If false, both are errors.
  bool is_one_of_many = false;
};

// Returns true if the item is whole because it lacks the shard's dimension.
bool is_replicated(const Item& item, const SelectionOptions& options);
// Returns true if the item keeps its type because that type cannot be converted to `as`.
bool is_unconverted(const Item& item, const SelectionOptions& options);
// Returns lines that count these items: "12 replicated: no dimension 1", "1 unconverted: I64".
std::vector<std::string> exceptions(std::span<const Item> items, const SelectionOptions& options);
// Throws Error kUsage if an option applies to none of the items.
void check_options(std::span<const Item> items, const SelectionOptions& options);

// Finds items. Keeps the checkpoints open that it has read, so that another name in one of them
// costs nothing. Thread safety: one call at a time.
class Selection {
 public:
  explicit Selection(const SourceOptions& options = {}) : warn_(options.warn), sources_(options) {}

  // Returns the items that the arguments of one request name, in their order. Throws Error like
  // resolve() and check_options().
  std::vector<Item> resolve_all(std::span<const std::string> arguments, SelectionOptions options);

  // Returns the items of resolve_all() without duplicates.
  std::vector<Item> resolve_once(std::span<const std::string> arguments,
                                 const SelectionOptions& options);

  // Returns the items that an argument names, at least one. A directory, a checkpoint and a glob
  // may name several. Throws Error kUsage for a name that means nothing and for a file that a mount
  // generates, kUnreadable if the source does not have the version that was mounted, and what
  // Checkpoint throws.
  std::vector<Item> resolve(const std::string& argument, SelectionOptions options = {});

  // Returns true if a load failed with `error` only because a source has another token than when
  // the items were resolved, although its version is the same, for instance after a hard link to it
  // was made. The caller should then resolve the items again and retry.
  bool has_moved(const Error& error, std::span<const Item> items) const;
  // Runs `load` with `items`, which it resolves again while has_moved() returns true.
  void load_resolved(std::vector<Item>& items, std::span<const std::string> arguments,
                     const SelectionOptions& options, const std::function<void()>& load);
  // The maximum number of attempts.
  static constexpr unsigned kMaxLoads = 10;

  // Makes the next call read checkpoints with layers again, because what layers show depends on
  // files beside a checkpoint and on files that layers read.
  void forget_layered();

  // Makes the next call resolve URLs again. A URL is otherwise resolved once. Call this after a
  // load that failed, because the object may be another one now.
  void forget_remote();

 private:
  static std::size_t split(const std::string& argument);
  void add_named(const std::string& source, const std::string& name, SelectionOptions options,
                 std::vector<Item>& items);
  void add_path(const std::string& path, SelectionOptions options, std::vector<Item>& items);
  void add_checkpoint(const std::string& source, SelectionOptions options,
                      std::vector<Item>& items);
  // Returns false if the file is not in a mount.
  bool add_file(const std::string& path, const SelectionOptions& options, std::vector<Item>& items);
  // Adds the item of a file in a mount. The item is the tensor `name` of the checkpoint that the
  // layers of the mount and of the options make. Returns false if the file is not in a mount.
  bool add_values(const std::string& path, const std::string& name, const SelectionOptions& options,
                  std::vector<Item>& items);
  struct Opened {
    std::string version;  // the version of the mount, the directory or the file that was named
    std::unique_ptr<const Checkpoint> checkpoint;
    // For a checkpoint with computed tensors: see Computation.
    std::shared_ptr<const std::string> description;
    std::optional<Identities> identities;
  };
  static ItemRequest request_for(const Opened& opened, const Tensor& tensor,
                                 const std::string& place);
  static void add(const Opened& opened, const Tensor& tensor, const std::string& slice,
                  const SelectionOptions& options, const std::string& place,
                  std::vector<Item>& items);
  // Returns the checkpoint as it is now, opened again if a part of it has changed. With `is_exact`,
  // opens only this file, which a mount names: a part of a split file without the other parts.
  const Opened& open(const std::string& source, bool is_exact = false, Layers layers = {});

  using Name = std::tuple<std::string, bool, Layers>;

  std::function<void(const std::string& line)> warn_;
  Sources sources_;              // must outlive open_
  std::map<Name, Opened> open_;  // by absolute path, is_exact, and layers
};

}  // namespace stfs::gpu
