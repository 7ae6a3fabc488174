// Turns the tensors that a command line or a caller of the library names into items.
//
//   /mnt/w/model.norm.weight            a file of a mount: a tensor; also below .stfs/, in the
//                                       views that show a tensor's bytes or values
//   /mnt/w/model/layers                 a directory of a mount: every tensor below it
//   model.safetensors                   a checkpoint, also an index or a directory: all its tensors
//   model.safetensors::model.norm.weight   SOURCE::NAME; otherwise a glob of names
//   hf://org/name, https://host/m.safetensors::NAME   the same of a source elsewhere, up to the
//                                       first "::" behind the host
//
// The extended attributes of a file in a mount name the source, the tensor, its part and the type
// that it is shown as. The source must still be the version that was mounted. A file of a computed
// tensor names no source: its tensor is that of the mount's sources with the mount's layers.
#pragma once

#include "core/base/error.h"
#include "core/checkpoint/checkpoint.h"
#include "core/checkpoint/mounted.h"
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

// A rank's part of a tensor that is divided along a dimension: RANK/WORLD@DIM.
struct Shard {
  std::uint64_t rank = 0;
  std::uint64_t world = 1;
  std::uint64_t dimension = 0;
};
Shard parse_shard(const std::string& text);  // throws Error kUsage

struct SelectionOptions {
  std::optional<DType> as;
  std::optional<Shard> shard;
  Layers layers;  // upon the whole checkpoint or mount that is named
  // Load a tensor without the shard's dimension whole, and one without a conversion to `as` in its
  // own type. When false, both are errors.
  bool is_one_of_many = false;
};

// Whether the item is whole because it lacks the shard's dimension.
bool is_replicated(const Item& item, const SelectionOptions& options);
// Whether the item keeps its type because no conversion from it to `as` exists.
bool is_unconverted(const Item& item, const SelectionOptions& options);
// Lines that count them: "12 replicated: no dimension 1", "1 unconverted: I64".
std::vector<std::string> exceptions(std::span<const Item> items, const SelectionOptions& options);
// Throws Error kUsage when an option applies to none of the items.
void check_options(std::span<const Item> items, const SelectionOptions& options);

// Checkpoints that were looked into stay open, so that the next name costs nothing.
// Thread safety: one call at a time.
class Selection {
 public:
  explicit Selection(const SourceOptions& options = {}) : warn_(options.warn), sources_(options) {}

  // The items that the arguments of one request name, in their order. Throws Error as resolve(),
  // and as check_options().
  std::vector<Item> resolve_all(std::span<const std::string> arguments, SelectionOptions options);

  // resolve_all() without items that are equal to an earlier one.
  std::vector<Item> resolve_once(std::span<const std::string> arguments,
                                 const SelectionOptions& options);

  // The items that an argument names, at least one. A directory, a checkpoint and a glob name many.
  // Throws Error: kUsage for a name of nothing and for a file that a mount makes, kUnreadable when
  // the source is not the version that was mounted, and what Checkpoint throws.
  std::vector<Item> resolve(const std::string& argument, SelectionOptions options = {});

  // Whether a load that threw should be tried again with items that are resolved anew: since they
  // were, a source has got another token and is still the same version, as after a link to it.
  bool has_moved(const Error& error, std::span<const Item> items) const;
  // Runs `load` with `items`, which it resolves again as long as has_moved().
  void load_resolved(std::vector<Item>& items, std::span<const std::string> arguments,
                     const SelectionOptions& options, const std::function<void()>& load);
  static constexpr unsigned kMostLoads = 10;

  // Files beside a checkpoint, and those that layers read, decide what layers show: the next call
  // reads them anew.
  void forget_layered();

  // A URL is resolved once. After this, the next call resolves it anew: after a load that failed,
  // the object may be another one.
  void forget_remote();

 private:
  static std::size_t split(const std::string& argument);
  void add_named(const std::string& source, const std::string& name, SelectionOptions options,
                 std::vector<Item>& items);
  void add_path(const std::string& path, SelectionOptions options, std::vector<Item>& items);
  void add_checkpoint(const std::string& source, SelectionOptions options,
                      std::vector<Item>& items);
  // Returns false for a file that is not in a mount.
  bool add_file(const std::string& path, const SelectionOptions& options, std::vector<Item>& items);
  // Adds the item of a file that shows the tensor `name` of the checkpoint that a mount or the
  // options make with layers. Returns false for a file that is not in a mount.
  bool add_values(const std::string& path, const std::string& name, const SelectionOptions& options,
                  std::vector<Item>& items);
  struct Opened {
    std::string version;  // of the mount, the directory or the file that was named
    std::unique_ptr<const Checkpoint> checkpoint;
    // Of a checkpoint with layers: see Computation.
    std::shared_ptr<const std::string> description;
    std::optional<Identities> identities;
  };
  static ItemRequest request_for(const Opened& opened, const Tensor& tensor,
                                 const std::string& place);
  static void add(const Opened& opened, const Tensor& tensor, const std::string& slice,
                  const SelectionOptions& options, const std::string& place,
                  std::vector<Item>& items);
  // The checkpoint as it is now: opened again when anything of it has changed.
  // `is_exact`: the file that a mount names; of a split file that part alone.
  const Opened& open(const std::string& source, bool is_exact = false, Layers layers = {});

  using Name = std::tuple<std::string, bool, Layers>;

  std::function<void(const std::string& line)> warn_;
  Sources sources_;              // outlives open_
  std::map<Name, Opened> open_;  // by absolute path, is_exact, and layers
};

}  // namespace stfs::gpu
