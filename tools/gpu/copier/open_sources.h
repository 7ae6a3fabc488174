// What a transfer reads: the source files of stored tensors, and the checkpoints of computed ones.
//
// Thread safety: const members may be called from any thread. Lifetime: given sources and
// checkpoints outlive it; it outlives the recipes of its items.
#pragma once

#include "core/checkpoint/mounted.h"
#include "core/remote/sources.h"
#include "core/stored/tensor_list.h"
#include "tools/gpu/protocol/item.h"
#include "tools/gpu/protocol/open_item.h"

#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace stfs::gpu {

struct OpenCheckpoint {
  explicit OpenCheckpoint(TensorList loaded) : list(std::move(loaded)), identities(list) {}
  TensorList list;  // by name
  Identities identities;
};
// By description (Computation::checkpoint). Kept from one transfer to the next, with what their
// layers have found out: checked tensors, kept changes.
using OpenCheckpoints = std::map<std::string, std::unique_ptr<const OpenCheckpoint>>;

class OpenSources {
 public:
  // Opens what the items need, once, and checks it against their versions. `given` opens; null: its
  // own. `kept`, opened by the same `given`: what it has is used, and afterwards it has what the
  // items need; null: its own. Throws Error.
  OpenSources(std::span<const Item> items, Sources* given, OpenCheckpoints* kept);

  OpenItem of(const Item& item) const;
  bool are_complete() const;
  void verify() const;  // throws as fail()
  // Throws Error kUnreadable for a failed read at `path`. ESTALE names the source that changed, if
  // one did.
  [[noreturn]] void fail(const std::string& path, int error) const;

 private:
  void open_files(std::span<const Item> items, Sources& opener);
  void open_checkpoints(std::span<const Item> items, Sources& opener);

  std::unique_ptr<Sources> own_;  // outlives what it opened
  OpenCheckpoints own_checkpoints_;
  OpenCheckpoints& checkpoints_;
  std::map<std::string, std::unique_ptr<const Source>> sources_;  // by path
  std::vector<const Source*> all_;
};

}  // namespace stfs::gpu
