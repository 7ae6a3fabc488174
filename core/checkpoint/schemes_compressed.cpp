// compressed-tensors: weights whose codes are packed into words of 32 bits, or FP4 in bytes.
#include "core/base/text.h"
#include "core/checkpoint/schemes.h"

#include <algorithm>
#include <cstring>

namespace stfs {
namespace {

// The numbers in weight_shape.
std::vector<std::uint64_t> numbers_in(const Finder& finder, const Tensor& weight,
                                      const Tensor& tensor) {
  const std::size_t size = type_info(tensor.dtype).block_bytes;
  if (tensor.dtype != DType::kI64 && tensor.dtype != DType::kI32) refuse_companion(weight, tensor);
  const std::string bytes = finder.bytes_of(tensor);
  std::vector<std::uint64_t> numbers;
  for (std::size_t i = 0; i + size <= bytes.size(); i += size) {
    std::int64_t number = 0;
    std::int32_t narrow = 0;
    std::memcpy(size == 8 ? static_cast<void*>(&number) : &narrow, bytes.data() + i, size);
    numbers.push_back(static_cast<std::uint64_t>(size == 8 ? number : narrow));
  }
  return numbers;
}

// The packing with the bits of a group of the config in which `columns` columns fill `width` words.
// Refuses a weight for which there are two.
std::optional<Packing> packing_of(const Tensor& weight,
                                  std::span<const QuantizationConfig::Group> groups,
                                  std::uint64_t columns, std::uint64_t width) {
  std::optional<Packing> found;
  for (const QuantizationConfig::Group& group : groups) {
    if (!group.bits || *group.bits > 8 || group.type == "float") continue;
    const auto half = std::int32_t{1} << (*group.bits - 1);
    for (const Codes codes : {Codes::kFields, Codes::kWords}) {
      const Packing packing = fields(codes, *group.bits, half);
      const auto whole = packed(packing, 1, columns, 4);
      if (!whole || whole->pitch != width * 4) continue;
      if (found && !(*found == packing)) {
        Finder::refuse(weight, "its " + std::to_string(columns) +
                                   " columns may be packed in two ways that have the same size");
      }
      found = packing;
      if (32 % *group.bits == 0) break;  // both are the same
    }
  }
  return found;
}

// The columns of a pack-quantized weight. weight_shape tells; a checkpoint of a hundred thousand
// experts elsewhere would have to be fetched for it, so where the scales leave no choice it is read
// only if it is on this machine.
std::uint64_t columns_of(const Finder& finder, const Tensor& weight, const Tensor& scale,
                         const std::optional<std::uint32_t>& shape_number,
                         const QuantizationConfig& config) {
  const Matrices grid = matrices_of(scale.shape);
  const std::uint64_t width = weight.shape.back();
  constexpr std::uint64_t kUntold = 0;
  std::uint64_t by_groups = kUntold;
  bool is_ambiguous = false;
  for (const QuantizationConfig::Group& group : config.groups) {
    if (!group.bits || group.type == "float") continue;
    std::uint64_t columns = 0;
    // Otherwise there is one group of all columns, whose number the config does not tell.
    const bool is_grouped = group.group_size && *group.group_size != QuantizationConfig::kAll &&
                            group.strategy != "channel" && group.strategy != "tensor";
    if (!is_grouped) {
      is_ambiguous = is_ambiguous || grid.columns == 1;
    } else if (!__builtin_mul_overflow(grid.columns, *group.group_size, &columns) &&
               packing_of(weight, {&group, 1}, columns, width)) {
      is_ambiguous = is_ambiguous || (by_groups != kUntold && by_groups != columns);
      by_groups = columns;
    }
  }
  if (is_ambiguous) by_groups = kUntold;
  if (!shape_number) {
    if (by_groups != kUntold) return by_groups;
    Finder::refuse(weight,
                   "has no weight_shape beside it, and the config does not tell its columns");
  }
  const Tensor shape = finder.tensor(*shape_number);
  const std::optional<Extent>& place = shape.locator;
  if (by_groups != kUntold && place && !place->source->has({place->offset, place->length})) {
    return by_groups;
  }
  const std::vector<std::uint64_t> told = numbers_in(finder, weight, shape);
  const Matrices rows = matrices_of(weight.shape);
  // Of stacked experts, the shape of all or of one.
  if (told.size() < 2 || told[told.size() - 2] != rows.rows ||
      (told.size() > 2 && !std::ranges::equal(std::span(told).first(told.size() - 1),
                                              weight.shape.first(weight.shape.size() - 1)))) {
    refuse_companion(weight, shape, "it tells another shape");
  }
  return told.back();
}

void add_zero_points(const Finder& finder, const Tensor& weight, const Tensor& scale,
                     std::string_view base, const Packing& packing, QuantizedWeight& found) {
  const auto number = finder.find(base, "_zero_point");
  if (!number) return;
  const Tensor zero = finder.tensor(*number);
  QuantizedLayout& layout = found.layout;
  found.input(Role::kZero) = *number;
  std::vector<std::uint64_t> shape(scale.shape.begin(), scale.shape.end());
  if (zero.dtype == DType::kI8) {
    layout.zero =
        packed_or_refuse(weight, {.codes = Codes::kSigned}, layout.grid_rows, layout.grid_columns);
  } else if (zero.dtype == DType::kI32) {
    Packing down = packing;
    down.codes = packing.codes == Codes::kFields ? Codes::kDown : Codes::kWordsDown;
    layout.zero = packed_or_refuse(weight, down, layout.grid_rows, layout.grid_columns);
    shape[shape.size() - 2] = layout.zero.matrix / layout.zero.pitch;  // rows of words
  } else {
    refuse_companion(weight, zero, "zero points are I8 or I32");
  }
  if (!std::ranges::equal(zero.shape, shape)) refuse_companion(weight, zero);
}

bool find_pack_quantized(const Finder& finder, std::uint32_t number, const Tensor& tensor,
                         std::string_view base, QuantizedWeight& found) {
  const std::string prefix = std::string(base);
  const QuantizationConfig& config = finder.config(number);
  const std::uint32_t scale_number = need(finder, tensor, prefix, "_scale");
  const Tensor scale = finder.tensor(scale_number);
  const auto shape_number = finder.find(prefix, "_shape");
  const auto type = scale_type(scale.dtype);
  const Matrices words = matrices_of(tensor.shape);
  const Matrices grid = matrices_of(scale.shape);
  if (!type || tensor.shape.size() < 2 || scale.shape.size() != tensor.shape.size() ||
      grid.matrices != words.matrices || (grid.rows != words.rows && grid.rows != 1) ||
      grid.columns == 0) {
    refuse_companion(tensor, scale);
  }
  const std::uint64_t columns = columns_of(finder, tensor, scale, shape_number, config);
  const auto packing = packing_of(tensor, config.groups, columns, words.columns);
  if (!packing) {
    if (config.groups.empty()) {
      refuse_without_config(finder, number, tensor, "the number of bits");
    }
    Finder::refuse(tensor, std::to_string(columns) + " columns in " +
                               std::to_string(words.columns) +
                               " words are no packing of the bits "
                               "that " +
                               printable(config.file) + " names");
  }
  QuantizedLayout& layout = found.layout;
  layout.matrices = words.matrices;
  layout.rows = words.rows;
  layout.columns = columns;
  layout.weight = packed_or_refuse(tensor, *packing, words.rows, columns, 4);
  layout.grid_rows = grid.rows;
  layout.grid_columns = grid.columns;
  layout.block_rows = grid.rows == words.rows ? 1 : std::max<std::uint64_t>(words.rows, 1);
  if (columns % grid.columns != 0) {
    refuse_companion(tensor, scale, "the columns are no multiple of its groups");
  }
  layout.block_columns = std::max<std::uint64_t>(columns / grid.columns, 1);
  layout.scale = packed_or_refuse(tensor, typed(*type), grid.rows, grid.columns);
  found.name = base;
  found.shape = with_last(tensor.shape, columns);
  found.input(Role::kWeight) = number;
  found.input(Role::kScale) = scale_number;
  if (shape_number) found.input(Role::kShape) = *shape_number;
  add_zero_points(finder, tensor, scale, prefix, *packing, found);
  if (const auto index = finder.find(prefix, "_g_idx")) {
    if (finder.tensor(*index).dtype != DType::kI32 || layout.grid_rows != layout.rows) {
      refuse_companion(tensor, finder.tensor(*index));
    }
    found.input(Role::kIndex) = *index;
    layout.index_may_be_unused = true;
  }
  return true;
}

bool find_fp4_packed(const Finder& finder, std::uint32_t number, const Tensor& tensor,
                     std::string_view base, QuantizedWeight& found) {
  const std::uint32_t scale_number = need(finder, tensor, base, "_scale");
  const Tensor scale = finder.tensor(scale_number);
  std::uint64_t last = 0;
  if (tensor.shape.size() < 2 || __builtin_mul_overflow(tensor.shape.back(), 2, &last)) {
    Finder::refuse(tensor, "its shape is not that of packed weights");
  }
  const bool is_nvfp4 = scale.dtype == DType::kF8E4M3;
  const bool is_mxfp4 = scale.dtype == DType::kU8 || scale.dtype == DType::kF8E8M0;
  if (!is_nvfp4 && !is_mxfp4) refuse_companion(tensor, scale, "no type of the scales of FP4");
  const std::uint64_t group = is_nvfp4 ? 16 : 32;
  const Matrices all = matrices_of(tensor.shape);
  const Matrices grid = matrices_of(scale.shape);
  if (scale.shape.size() != tensor.shape.size() || grid.matrices != all.matrices ||
      grid.rows != all.rows || last % group != 0 || grid.columns != last / group) {
    refuse_companion(tensor, scale,
                     "a scale for each " + std::to_string(group) + " columns is expected");
  }
  QuantizedLayout& layout = found.layout;
  layout.matrices = all.matrices;
  layout.rows = all.rows;
  layout.columns = last;
  layout.weight = packed_or_refuse(tensor, typed(DType::kF4), all.rows, last);
  layout.grid_rows = grid.rows;
  layout.grid_columns = grid.columns;
  layout.block_columns = group;
  layout.scale = packed_or_refuse(tensor, typed(is_nvfp4 ? DType::kF8E4M3 : DType::kF8E8M0),
                                  grid.rows, grid.columns);
  found.name = base;
  found.shape = with_last(tensor.shape, last);
  found.input(Role::kWeight) = number;
  found.input(Role::kScale) = scale_number;
  const auto factor_number = finder.find(base, "_global_scale");
  if (is_nvfp4 != factor_number.has_value()) {
    if (is_nvfp4) refuse_half(tensor, base, "_global_scale");
    refuse_companion(tensor, finder.tensor(*factor_number), "MXFP4 has no global scale");
  }
  if (!is_nvfp4) return true;
  const Tensor factor = finder.tensor(*factor_number);
  const bool is_of_matrix = factor.elements() != 1;
  if (factor.dtype != DType::kF32 || (is_of_matrix && factor.elements() != all.matrices)) {
    refuse_companion(tensor, factor);
  }
  found.input(Role::kFactor) = *factor_number;
  layout.factor = QuantizedLayout::Factor::kDivides;
  layout.factor_is_of_matrix = is_of_matrix;
  return true;
}

}  // namespace

bool find_packed(const Finder& finder, std::uint32_t number, const Tensor& tensor,
                 QuantizedWeight& found) {
  if (!tensor.name.ends_with(".weight_packed")) return false;
  const std::string_view base = without_ending(tensor.name, "_packed");
  if (tensor.dtype == DType::kI32) return find_pack_quantized(finder, number, tensor, base, found);
  if (tensor.dtype == DType::kU8) return find_fp4_packed(finder, number, tensor, base, found);
  Finder::refuse(tensor,
                 "packed weights are I32 or U8, not " + std::string(dtype_name(tensor.dtype)));
}

}  // namespace stfs
