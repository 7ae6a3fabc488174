// One thing to have on a device: a tensor of a source file, or a part of it, in its own type or
// another. A tensor that layers compute is named by the description of its checkpoint. An item says
// where the bytes are and of which version; it owns no file.
//
// Two items are the same bytes exactly when their keys are equal. Immutable once it is made, and
// then safe to share between threads.
#pragma once

#include "core/format/types.h"
#include "core/recipe/content.h"
#include "core/recipe/slice.h"
#include "core/source/source.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace stfs::gpu {

class ConversionTally;

// A tensor that layers compute, in a checkpoint that the copier loads.
struct Computation {
  // mount_json() of the checkpoint (core/checkpoint/mounted.h): its sources, layers and version.
  // All items of one checkpoint share it.
  std::shared_ptr<const std::string> checkpoint;
  std::string identity;  // the tensor's (Identities)
  std::string scheme;    // for people: "FP8 with scales"
};

// A request for an item: a tensor as its header describes it, with an optional slice and type.
struct ItemRequest {
  std::string path;               // of the source file: absolute, or its URL without secrets
  std::string tensor;             // its name
  std::string version;            // the token of the source's version (core/source/source.h)
  std::uint64_t source_size = 0;  // bytes
  std::uint64_t offset = 0;       // of the tensor's first byte in the file; of its first input
  DType dtype = DType::kU8;
  std::vector<std::uint64_t> shape;
  std::string slice = {};                    // EXPR as core/recipe/slice.h says; empty: all of it
  std::optional<DType> as = {};              // F32, F16 or BF16; empty: its own type
  std::optional<Computation> computed = {};  // nullopt: the tensor is stored
};

struct OpenItem;  // open_item.h

class Item {
 public:
  // Trusts nothing in the request. Throws Error kUsage for a tensor or an input outside its file, a
  // slice that its tensor does not have, or a conversion that does not exist.
  explicit Item(ItemRequest request);

  const ItemRequest& request() const { return request_; }
  DType dtype() const { return request_.as.value_or(request_.dtype); }  // of the result
  const std::vector<std::uint64_t>& shape() const { return slice_.shape; }
  std::uint64_t elements() const { return elements_; }
  std::uint64_t bytes() const { return bytes_; }  // of the result
  std::uint64_t raw_bytes() const {               // before a conversion
    return cuts_blocks() ? elements_ * sizeof(float) : slice_.size();
  }
  bool converts() const { return request_.as.has_value(); }

  // Whether the slice begins or ends inside a block: only values can be cut there, so raw() has
  // them as F32, and the host converts them.
  bool cuts_blocks() const { return !ranges_.empty(); }

  // The bytes' identity, on whichever device: the source's version, offset, type and shape, the
  // canonical form of the slice, and the type they are converted to. Of a computed tensor, its
  // identity in place of version and offset.
  const std::string& key() const { return key_; }

  // The name for people: "/w/model.safetensors::w[0:2,:] as F16", or, of a computed tensor,
  // "/w/model.safetensors::w computed as BF16 (FP8 with scales)". It stays the same when the source
  // changes.
  std::string label() const;

  // The recipe of the bytes before a conversion. What is open is of the version that the request
  // names. Throws Error kUnreadable for a checkpoint that has another tensor of the name, or none.
  Content raw(const OpenItem& open) const;

  // The recipe of the bytes that stand on the device, converted on the host where they are
  // converted. What the conversion meets is added to `tally` when that is given; it then outlives
  // the recipe.
  Content content(const OpenItem& open, ConversionTally* tally = nullptr) const;

 private:
  [[noreturn]] void refuse(const std::string& rule) const;
  void check_place() const;
  std::string identity() const;
  Content whole(const OpenItem& open) const;

  ItemRequest request_;
  std::uint64_t tensor_bytes_ = 0;  // of the whole tensor
  Slice slice_;                     // in bytes; in elements if it cuts blocks
  std::vector<Range> ranges_;       // only then
  std::uint64_t elements_ = 1;
  std::uint64_t bytes_ = 0;
  std::string key_;
};

}  // namespace stfs::gpu
