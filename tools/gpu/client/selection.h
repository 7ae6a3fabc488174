// What a command line, or a caller of the library, names: arguments into items.
//
//   /mnt/w/model.norm.weight            a file of a mount: a tensor; also below .stfs/, in the
//                                       views that show a tensor's bytes or values
//   /mnt/w/model/layers                 a directory of a mount: every tensor below it
//   model.safetensors::model.norm.weight   SOURCE::NAME; otherwise a glob of names
//
// The source is read by what the mount says of a file (its extended attributes: the tensor, its
// part, the type that it is shown as), and must still be the version that was mounted.
#pragma once

#include "core/checkpoint/checkpoint.h"
#include "tools/gpu/copier/item.h"

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
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
};

// Checkpoints that were looked into stay open, so that the next name costs nothing.
// Thread safety: one call at a time.
class Selection {
 public:
  // The items that an argument names, at least one. Throws Error: kUsage for a name of nothing,
  // kUnreadable when the source is not the version that was mounted.
  std::vector<Item> resolve(const std::string& argument, const SelectionOptions& options = {});

 private:
  static std::size_t split(const std::string& argument);
  void add_named(const std::string& source, const std::string& name,
                 const SelectionOptions& options, std::vector<Item>& items);
  void add_path(const std::string& path, const SelectionOptions& options, std::vector<Item>& items);
  void add_file(const std::string& path, const SelectionOptions& options, std::vector<Item>& items);
  static void add(const Tensor& tensor, const std::string& slice, const SelectionOptions& options,
                  const std::string& place, std::vector<Item>& items);
  // The checkpoint as it is now: opened again when a file of it has changed.
  const Checkpoint& open(const std::string& source);

  std::map<std::string, std::unique_ptr<const Checkpoint>> open_;
};

}  // namespace stfs::gpu
