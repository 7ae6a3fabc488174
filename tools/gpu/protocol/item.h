// An item is one thing that can be on a device: a tensor of a source file or a part of it, in its
// own type or converted. If the tensor is computed, the item has the description of its
// checkpoint. An item says where the bytes are and which version they have; it does not own a file.
//
// Items with equal keys have the same bytes. Thread safety: an item is immutable after its
// construction and may be shared between threads.
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

// A tensor that is computed, by layers or as a file of PyTorch or NumPy describes it, in a
// checkpoint that the copier loads.
struct Computation {
  // mount_json() of the checkpoint (core/checkpoint/mount_source.h): its sources, layers and
  // version. Shared by all items of the checkpoint.
  std::shared_ptr<const std::string> checkpoint;
  std::string identity;  // the tensor's identity (Identities)
  std::string scheme;    // for people: "FP8 with scales"
};

// A request for an item: a tensor as its header describes it, optionally with a slice and a type.
struct ItemRequest {
  std::string path;               // the source file: an absolute path, or a URL without secrets
  std::string tensor;             // the name of the tensor
  std::string version;            // the token of the source's version (core/source/source.h)
  std::uint64_t source_size = 0;  // bytes
  // The position in the source of the tensor's first byte, or of the first input of a computed
  // tensor.
  std::uint64_t offset = 0;
  DType dtype = DType::kU8;
  std::vector<std::uint64_t> shape;
  std::string slice = {};        // an expression, see core/recipe/slice.h; "": all of it
  std::optional<DType> as = {};  // F32, F16 or BF16; nullopt: its own type
  std::optional<Computation> computed = {};  // nullopt: the tensor is stored
};

struct OpenItem;  // open_item.h

class Item {
 public:
  // Does not trust the request. Throws Error kUsage if the tensor is outside its file, if the slice
  // does not fit the tensor, or if the conversion does not exist.
  explicit Item(ItemRequest request);

  const ItemRequest& request() const { return request_; }
  DType dtype() const { return request_.as.value_or(request_.dtype); }  // the type of the result
  const std::vector<std::uint64_t>& shape() const { return slice_.shape; }
  std::uint64_t elements() const { return elements_; }
  std::uint64_t bytes() const { return bytes_; }  // the size of the result
  std::uint64_t raw_bytes() const {               // the size before a conversion
    return cuts_blocks() ? elements_ * sizeof(float) : slice_.size();
  }
  bool converts() const { return request_.as.has_value(); }

  // Returns true if the slice begins or ends inside a block. Such a slice can only be made from
  // values, so raw() returns F32, and the host converts it to the type of the result.
  bool cuts_blocks() const { return !ranges_.empty(); }

  // Returns the identity of the bytes, independent of the device: the source's version, the offset,
  // type and shape of the tensor, the canonical form of the slice, and the type of the result. For
  // a computed tensor, Computation::identity replaces version and offset.
  const std::string& key() const { return key_; }

  // Returns the name for people: "/w/model.safetensors::w[0:2,:] as F16", or for a computed tensor
  // "/w/model.safetensors::w computed as BF16 (FP8 with scales)". It does not depend on the version
  // of the source.
  std::string label() const;

  // Returns the recipe of the bytes before a conversion. `open` must have the version that the
  // request names. Throws Error kUnreadable if the checkpoint of a computed tensor has no tensor of
  // this name, or another one.
  Content raw(const OpenItem& open) const;

  // Returns the recipe of the bytes on the device, for a conversion on the host. If `tally` is
  // given, counts in it the values that the conversion changes; it must outlive the recipe.
  Content content(const OpenItem& open, ConversionTally* tally = nullptr) const;

 private:
  [[noreturn]] void refuse(const std::string& rule) const;
  void check_place() const;
  std::string identity() const;
  Content whole(const OpenItem& open) const;

  ItemRequest request_;
  std::uint64_t tensor_bytes_ = 0;  // the size of the whole tensor
  Slice slice_;                     // in bytes; in elements if it cuts blocks
  std::vector<Range> ranges_;       // set only if the slice cuts blocks
  std::uint64_t elements_ = 1;
  std::uint64_t bytes_ = 0;
  std::string key_;
};

}  // namespace stfs::gpu
