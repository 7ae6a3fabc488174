// The sources that a transfer reads: the files of stored tensors, and the checkpoints of computed
// tensors.
//
// Thread safety: const members may be called from any thread. Lifetime: the given sources and
// checkpoints must outlive it, and it must outlive the recipes of its items.
#pragma once

#include "core/checkpoint/mount_source.h"
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
  TensorList list;  // found by name
  Identities identities;
};
// The open checkpoints by their description (Computation::checkpoint). They are kept from one
// transfer to the next, together with what their layers have found out, such as checked tensors and
// kept changes.
using OpenCheckpoints = std::map<std::string, std::unique_ptr<const OpenCheckpoint>>;

class OpenSources {
 public:
  // Opens the sources and checkpoints that the items need, each once, and checks that they have the
  // items' versions. Uses `given` to open them, or its own Sources if `given` is null. If `kept` is
  // not null, uses the checkpoints in it, which must have been opened with the same `given`;
  // afterwards `kept` has exactly the checkpoints that the items need. Throws Error.
  OpenSources(std::span<const Item> items, Sources* given, OpenCheckpoints* kept);

  // Returns the open sources of an item.
  OpenItem of(const Item& item) const;
  // Returns true if all bytes of all sources are local.
  bool are_complete() const;
  void verify() const;  // throws like fail()
  // Throws Error kUnreadable for a failed read of the source at `path`. With ESTALE the error names
  // the source that has changed, if one has.
  [[noreturn]] void fail(const std::string& path, int error) const;

 private:
  void open_files(std::span<const Item> items, Sources& opener);
  void open_checkpoints(std::span<const Item> items, Sources& opener);

  std::unique_ptr<Sources> own_;  // must outlive the sources that it opened
  OpenCheckpoints own_checkpoints_;
  OpenCheckpoints& checkpoints_;
  std::map<std::string, std::unique_ptr<const Source>> sources_;  // by path
  std::vector<const Source*> all_;
};

}  // namespace stfs::gpu
