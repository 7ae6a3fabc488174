#include "tools/gpu/library/inherited.h"

#include "core/base/error.h"
#include "core/base/posix.h"
#include "core/base/text.h"
#include "tools/gpu/protocol/message.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdlib>
#include <limits>

namespace stfs::gpu {
namespace {

constexpr std::uint64_t kLimit = 1 << 30;  // the maximum size of the list, in bytes

// Returns the bytes of a text: `raw` has them if they are not UTF-8; `name` is for people.
std::string bytes_of(const Json& entry, const char* name, const char* raw) {
  if (const auto found = entry.find(raw); found != entry.end()) return from_json_text(*found);
  return entry.at(name).get<std::string>();
}

InheritedTensor parse_one(const Json& entry) {
  InheritedTensor tensor;
  tensor.name = bytes_of(entry, "name", "raw_name");
  tensor.label = bytes_of(entry, "label", "raw_label");
  tensor.key = entry.at("key").get<std::string>();
  tensor.fd = entry.at("fd").get<int>();
  tensor.offset = entry.at("offset").get<std::uint64_t>();
  tensor.bytes = entry.at("bytes").get<std::uint64_t>();
  tensor.segment_bytes = entry.at("segment_bytes").get<std::uint64_t>();
  const std::string dtype = entry.at("dtype").get<std::string>();
  const std::optional<DType> known = dtype_from_name(dtype);
  if (!known)
    throw Error(ErrorCode::kUsage, kInheritedVariable,
                in_quotes(dtype) + ": unknown dtype: start the program with stfs-gpu run");
  tensor.dtype = *known;
  tensor.shape = entry.at("shape").get<std::vector<std::uint64_t>>();
  tensor.device_uuid = entry.at("uuid").get<std::string>();
  check_placement(tensor, tensor.offset, tensor.segment_bytes);
  return tensor;
}

}  // namespace

std::vector<InheritedTensor> parse_inherited(std::string_view json) {
  std::vector<InheritedTensor> tensors;
  try {
    const Json list = Json::parse(json);
    if (!list.is_array())
      throw Error(ErrorCode::kUsage, kInheritedVariable,
                  "not an array: start the program with stfs-gpu run");
    for (const Json& entry : list) tensors.push_back(parse_one(entry));
  } catch (const nlohmann::json::exception&) {
    throw Error(ErrorCode::kUsage, kInheritedVariable,
                "not a list of tensors: start the program with stfs-gpu run");
  }
  return tensors;
}

std::optional<std::vector<InheritedTensor>> inherited_tensors() {
  const char* path = std::getenv(kInheritedVariable);
  if (path == nullptr || *path == '\0') return std::nullopt;
  return parse_inherited(read_file(path, kLimit));
}

void check_placement(const TensorFacts& tensor, std::uint64_t offset, std::uint64_t segment_bytes) {
  const auto refuse = [&tensor](const char* rule) {
    throw Error(ErrorCode::kDeviceFailed, "", in_quotes(tensor.label) + ": " + rule);
  };
  std::uint64_t elements = std::ranges::count(tensor.shape, 0U) == 0 ? 1 : 0;
  for (const std::uint64_t extent : tensor.shape) {
    // DLPack and NumPy use signed 64-bit extents.
    if (extent > std::numeric_limits<std::int64_t>::max() ||
        __builtin_mul_overflow(elements, extent, &elements))
      refuse("its shape exceeds 64 bits");
  }
  if (type_info(tensor.dtype).bytes_of(elements) != tensor.bytes)
    refuse("its size does not match its shape and dtype");
  if (tensor.bytes > segment_bytes || offset > segment_bytes - tensor.bytes)
    refuse("its bytes lie outside its segment");
}

}  // namespace stfs::gpu
