#include "tools/library/dlpack_export.h"

#include "core/base/error.h"
#include "core/format/types.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace stfs {
namespace {

template <class Managed>
auto export_of(Opened& opened, const PartOfTensor& part, bool is_bytes) {
  const PartRecipe recipe = opened.recipe(part);
  const TypeInfo& info = type_info(is_bytes ? DType::kU8 : recipe.dtype);
  if (info.dlpack == TypeInfo::kNoDlpack) {
    throw Error(ErrorCode::kUsage, "",
                "DLPack has no type for " + std::string(info.name) +
                    ": read it as f32, or export its bytes");
  }
  std::vector<std::int64_t> shape{static_cast<std::int64_t>(recipe.content.size())};
  if (!is_bytes) shape.assign(recipe.shape.begin(), recipe.shape.end());
  auto made = dlpack::make_export<Managed, Memory>(
      shape, {info.dlpack, static_cast<std::uint8_t>(info.bits()), 1}, {dlpack::kCpu, 0});
  std::byte* data = nullptr;
  made->owner = opened.map_private(part, data);
  made->managed.dl_tensor.data = data;
  return made;
}

}  // namespace

DLManagedTensorVersioned* export_dlpack(Opened& opened, const PartOfTensor& part, bool is_bytes) {
  auto made = export_of<DLManagedTensorVersioned>(opened, part, is_bytes);
  made->managed.version = dlpack::kVersion;
  made->managed.flags = dlpack::kIsCopied;
  return &made.release()->managed;
}

DLManagedTensor* export_dlpack_unversioned(Opened& opened, const PartOfTensor& part,
                                           bool is_bytes) {
  return &export_of<DLManagedTensor>(opened, part, is_bytes).release()->managed;
}

}  // namespace stfs
