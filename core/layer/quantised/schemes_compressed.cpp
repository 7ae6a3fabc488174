// compressed-tensors: weights whose codes are packed into words of 32 bits, or FP4 in bytes.
#include "core/base/text.h"
#include "core/layer/quantised/schemes.h"

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

using Groups = std::span<const QuantizationConfig::Group* const>;

// The packing with the bits of a group of the config in which `columns` columns fill `width` words.
// Refuses a weight for which there are two.
std::optional<Packing> packing_of(const Tensor& weight, Groups groups, std::uint64_t columns,
                                  std::uint64_t width) {
  std::optional<Packing> found;
  for (const QuantizationConfig::Group* const group : groups) {
    if (!group->bits || *group->bits > 8 || group->type == "float") continue;
    const auto half = std::int32_t{1} << (*group->bits - 1);
    for (const Codes codes : {Codes::kFields, Codes::kWords}) {
      const Packing packing = fields(codes, *group->bits, half);
      const auto whole = packed(packing, 1, columns, 4);
      if (!whole || whole->pitch != width * 4) continue;
      if (found && !(*found == packing)) {
        Finder::refuse(weight, "its " + std::to_string(columns) +
                                   " columns may be packed in two ways that have the same size");
      }
      found = packing;
      if (32 % *group->bits == 0) break;  // both are the same
    }
  }
  return found;
}

// The columns of a pack-quantized weight. weight_shape tells; a checkpoint of a hundred thousand
// experts elsewhere would have to be fetched for it, so where the scales leave no choice it is read
// only if it is on this machine.
std::uint64_t columns_of(const Finder& finder, const Tensor& weight, const Tensor& scale,
                         const std::optional<std::uint32_t>& shape_number, Groups groups) {
  const Matrices grid = matrices_of(scale.shape);
  const std::uint64_t width = weight.shape.back();
  constexpr std::uint64_t kUntold = 0;
  std::uint64_t by_groups = kUntold;
  bool is_ambiguous = false;
  for (const QuantizationConfig::Group* const group : groups) {
    if (!group->bits || group->type == "float") continue;
    std::uint64_t columns = 0;
    // Otherwise there is one group of all columns, whose number the config does not tell.
    const bool is_grouped = group->group_size && *group->group_size != QuantizationConfig::kAll &&
                            group->strategy != "channel" && group->strategy != "tensor";
    if (!is_grouped) {
      is_ambiguous = is_ambiguous || grid.columns == 1;
    } else if (!__builtin_mul_overflow(grid.columns, *group->group_size, &columns) &&
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
  if (!number) {
    refuse_without_zero_points(finder, found.input(Role::kWeight), weight, base);
    return;
  }
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

// W4A8 with FP8 scales of groups: the product is multiplied by a scale of the row.
void add_row_scale(const Finder& finder, const Tensor& weight, std::string_view base,
                   QuantizedWeight& found) {
  const auto number = finder.find(base, "_chan_scale");
  if (!number) return;
  const Tensor scale = finder.tensor(*number);
  const auto type = scale_type(scale.dtype);
  const std::size_t rank = weight.shape.size();
  const bool has_one = scale.shape.size() == rank && scale.shape.back() == 1;
  if (!type || *type == DType::kF8E8M0 || (!has_one && scale.shape.size() + 1 != rank) ||
      !std::ranges::equal(scale.shape.first(rank - 1), weight.shape.first(rank - 1))) {
    refuse_companion(weight, scale, "a scale for each row is expected");
  }
  found.input(Role::kRowFactor) = *number;
  found.layout.row_factor_type = *type;
}

bool find_pack_quantized(const Finder& finder, std::uint32_t number, const Tensor& tensor,
                         std::string_view base, QuantizedWeight& found) {
  const std::string prefix = std::string(base);
  const QuantizationConfig& config = finder.config(number);
  const std::uint32_t scale_number = need(finder, tensor, prefix, "_scale");
  const Tensor scale = finder.tensor(scale_number);
  const auto shape_number = finder.find(prefix, "_shape");
  const bool is_fp8 = scale.dtype == DType::kF8E4M3;
  const auto type = is_fp8 ? std::optional(scale.dtype) : scale_type(scale.dtype);
  const Matrices words = matrices_of(tensor.shape);
  const Matrices grid = matrices_of(scale.shape);
  if (!type || tensor.shape.size() < 2 || scale.shape.size() != tensor.shape.size() ||
      grid.matrices != words.matrices || (grid.rows != words.rows && grid.rows != 1) ||
      grid.columns == 0) {
    refuse_companion(tensor, scale);
  }
  const GroupsOfModule own = groups_of(config, without_ending(base, ".weight"), finder.work());
  const std::uint64_t columns = columns_of(finder, tensor, scale, shape_number, own.groups);
  auto packing = packing_of(tensor, own.groups, columns, words.columns);
  if (!packing && !own.is_told) {
    packing = packing_of(tensor, all_groups(config), columns, words.columns);
  }
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
  add_row_scale(finder, tensor, prefix, found);
  if (is_fp8 && found.input(Role::kRowFactor) == QuantizedWeight::kNone) {
    refuse_half(tensor, prefix, "_chan_scale");
  }
  if (const auto index = finder.find(prefix, "_g_idx")) {
    if (finder.tensor(*index).dtype != DType::kI32 || layout.grid_rows != layout.rows) {
      refuse_companion(tensor, finder.tensor(*index));
    }
    found.input(Role::kIndex) = *index;
    layout.index_may_be_unused = true;
  }
  return true;
}

// Bytes as scales are E8M0 of MXFP4, or UE5M3 of AutoRound's nvfp4_v2: only the config tells.
void refuse_other_scales(const Finder& finder, std::uint32_t number, const Tensor& tensor,
                         std::string_view base) {
  const QuantizationConfig& config = finder.config(number);
  const std::string_view module = without_ending(base, ".weight");
  std::vector<std::string> told;
  if (config.method.ends_with("auto-round")) {
    for (const QuantizationConfig::Exception* const own :
         exceptions_of(config, module, finder.work())) {
      if (!own->data_type.empty()) told.push_back(own->data_type);
    }
    if (told.empty()) told.push_back(config.data_type);
  }
  for (const QuantizationConfig::Group* const group :
       groups_of(config, module, finder.work()).groups) {
    told.push_back(group->format.empty() ? config.format : group->format);
  }
  const bool is_mxfp4 = !told.empty() && std::ranges::all_of(told, [](const std::string& word) {
    return word.starts_with("mx_fp") || word.starts_with("mxfp4");
  });
  if (is_mxfp4) return;
  refuse_without_config(finder, number, tensor,
                        "whether the bytes of its scales are E8M0 or UE5M3");
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
  if (scale.dtype == DType::kU8) refuse_other_scales(finder, number, tensor, base);
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
