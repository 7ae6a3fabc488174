// compressed-tensors: weights with codes packed into 32-bit words, or FP4 in bytes.
#include "core/base/text.h"
#include "core/layer/quantised/schemes.h"

#include <algorithm>
#include <cstring>

namespace stfs {
namespace {

// Returns the numbers in weight_shape.
std::vector<std::uint64_t> numbers_in(const Candidate& weight, const Tensor& tensor) {
  const std::size_t size = type_info(tensor.dtype).block_bytes;
  if (tensor.dtype != DType::kI64 && tensor.dtype != DType::kI32) weight.refuse(tensor);
  const std::string bytes = weight.finder.bytes_of(tensor);
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

// Returns the packing, with the bits of one of the config's groups, in which `columns` columns fill
// the words of a row. Refuses a weight for which two packings fit.
std::optional<Packing> packing_of(const Candidate& weight, Groups groups, std::uint64_t columns) {
  const std::uint64_t words = weight.tensor.shape.back();
  std::optional<Packing> found;
  for (const QuantizationConfig::Group* const group : groups) {
    if (!group->bits || *group->bits > 8 || group->type == "float") continue;
    const auto half = std::int32_t{1} << (*group->bits - 1);
    for (const Codes codes : {Codes::kFields, Codes::kWords}) {
      const Packing packing = fields(codes, *group->bits, half);
      const auto whole = packed(packing, 1, columns, 4);
      if (!whole || whole->pitch != words * 4) continue;
      if (found && !(*found == packing)) {
        weight.refuse("its " + std::to_string(columns) +
                      " columns may be packed in two ways that have the same size");
      }
      found = packing;
      if (32 % *group->bits == 0) break;  // both packings are the same
    }
  }
  return found;
}

// Determines the columns of a pack-quantized weight by its scales, if weight_shape is missing.
std::uint64_t columns_by_groups(const Candidate& weight, const Tensor& scale, Groups groups) {
  const Matrices grid = matrices_of(scale.shape);
  constexpr std::uint64_t kUntold = 0;
  std::uint64_t by_groups = kUntold;
  bool is_ambiguous = false;
  for (const QuantizationConfig::Group* const group : groups) {
    if (!group->bits || group->type == "float") continue;
    std::uint64_t columns = 0;
    // Otherwise all columns form one group, and the config does not contain their number.
    const bool is_grouped = group->group_size && *group->group_size != QuantizationConfig::kAll &&
                            group->strategy != "channel" && group->strategy != "tensor";
    if (!is_grouped) {
      is_ambiguous = is_ambiguous || grid.columns == 1;
    } else if (!__builtin_mul_overflow(grid.columns, *group->group_size, &columns) &&
               packing_of(weight, {&group, 1}, columns)) {
      is_ambiguous = is_ambiguous || (by_groups != kUntold && by_groups != columns);
      by_groups = columns;
    }
  }
  if (is_ambiguous || by_groups == kUntold) {
    weight.refuse(
        "has no weight_shape beside it, and the config does not give its number of columns");
  }
  return by_groups;
}

// Returns the columns of a pack-quantized weight, from weight_shape if it exists.
std::uint64_t columns_of(const Candidate& weight, const Tensor& scale,
                         const std::optional<Companion>& shape, Groups groups) {
  if (!shape) return columns_by_groups(weight, scale, groups);
  const std::vector<std::uint64_t> told = numbers_in(weight, *shape);
  const std::span stored = weight.tensor.shape;
  // For stacked experts, weight_shape is the shape of the stack or of one expert.
  if (told.size() < 2 || told[told.size() - 2] != stored[stored.size() - 2] ||
      (told.size() > 2 && !std::ranges::equal(std::span(told).first(told.size() - 1),
                                              stored.first(stored.size() - 1)))) {
    weight.refuse(*shape, "it gives another shape");
  }
  return told.back();
}

// The scales determine the number of groups per row. Refuses a weight if the configuration
// contradicts it.
void refuse_other_groups(const Candidate& weight, Groups groups, std::uint64_t columns,
                         std::uint64_t count) {
  const auto is_other = [&](const QuantizationConfig::Group* group) {
    if (group->strategy == "channel" || group->strategy == "tensor") return count != 1;
    return (group->strategy.empty() || group->strategy == "group") && group->group_size &&
           *group->group_size != QuantizationConfig::kAll &&
           (columns + *group->group_size - 1) / *group->group_size != count;
  };
  if (groups.empty() || !std::ranges::all_of(groups, is_other)) return;
  weight.refuse(std::to_string(columns / count) + " of its columns share a scale, but " +
                printable(weight.config().file) + " says otherwise: one of them is wrong");
}

void take_zero_points(Candidate& weight, const Tensor& scale, std::string_view base,
                      const Packing& packing) {
  const auto zero = weight.find(base, "_zero_point");
  if (!zero) return weight.refuse_without_zero_points(base);
  std::vector<std::uint64_t> shape(scale.shape.begin(), scale.shape.end());
  if (zero->dtype == DType::kI8) {
    weight.take_on_grid(Role::kZero, *zero, {.codes = Codes::kSigned});
  } else if (zero->dtype == DType::kI32) {
    Packing down = packing;
    down.codes = packing.codes == Codes::kFields ? Codes::kDown : Codes::kWordsDown;
    weight.take_on_grid(Role::kZero, *zero, down);
    const Packing& words = weight.found.layout.zero;
    shape[shape.size() - 2] = words.matrix / words.pitch;  // the rows of words
  } else {
    weight.refuse(*zero, "zero points must be I8 or I32");
  }
  if (!std::ranges::equal(zero->shape, shape)) weight.refuse(*zero);
}

// W4A8 with FP8 scales of groups: the product is multiplied by a scale per row.
void take_row_scale(Candidate& weight, const Companion& scale) {
  const auto type = float_scale_type(scale.dtype);
  const std::span stored = weight.tensor.shape;
  const std::size_t rank = stored.size();
  const bool has_one = scale.shape.size() == rank && scale.shape.back() == 1;
  if (!type || (!has_one && scale.shape.size() + 1 != rank) ||
      !std::ranges::equal(scale.shape.first(rank - 1), stored.first(rank - 1))) {
    weight.refuse(scale, "expected a scale for each row");
  }
  weight.take(Role::kRowFactor, scale);
  weight.found.layout.row_factor_type = *type;
}

bool find_pack_quantized(Candidate& weight, std::string_view base) {
  const Tensor& tensor = weight.tensor;
  const QuantizationConfig& config = weight.config();
  const Companion scale = weight.need(base, "_scale");
  const auto shape = weight.find(base, "_shape");
  const bool is_scaled_by_fp8 = scale.dtype == DType::kF8E4M3;
  const auto type = is_scaled_by_fp8 ? std::optional(scale.dtype) : scale_type(scale.dtype);
  Matrices stored = matrices_of(tensor.shape);
  const Matrices grid = matrices_of(scale.shape);
  if (!type || tensor.shape.size() < 2 || scale.shape.size() != tensor.shape.size() ||
      grid.matrices != stored.matrices || (grid.rows != stored.rows && grid.rows != 1) ||
      grid.columns == 0) {
    weight.refuse(scale);
  }
  const GroupsOfModule own =
      groups_of(config, without_ending(base, ".weight"), weight.finder.work());
  stored.columns = columns_of(weight, scale, shape, own.groups);
  auto packing = packing_of(weight, own.groups, stored.columns);
  if (!packing && !own.is_told) packing = packing_of(weight, all_groups(config), stored.columns);
  if (!packing) {
    if (config.groups.empty()) weight.refuse_without_config("the number of bits");
    weight.refuse(std::to_string(stored.columns) + " columns do not fit " +
                  std::to_string(tensor.shape.back()) + " words with the number of bits in " +
                  printable(config.file));
  }
  weight.set_codes(*packing, stored, 4);
  if (stored.columns % grid.columns != 0) {
    weight.refuse(scale, "the number of columns is not a multiple of its groups");
  }
  weight.set_grid(grid.rows, grid.columns, grid.rows == stored.rows ? 1 : stored.rows,
                  stored.columns / grid.columns);
  weight.take_on_grid(Role::kScale, scale, typed(*type));
  weight.set_result(base, with_last(tensor.shape, stored.columns));
  if (shape) weight.take(Role::kShape, *shape);
  take_zero_points(weight, scale, base, *packing);
  const auto row_scale = weight.find(base, "_chan_scale");
  if (row_scale) take_row_scale(weight, *row_scale);
  if (is_scaled_by_fp8 && !row_scale) weight.refuse_half(base, "_chan_scale");
  const auto groups = own.is_told ? own.groups : all_groups(config);
  refuse_other_groups(weight, groups, stored.columns, grid.columns);
  const auto index = weight.find(base, "_g_idx");
  const bool needs_index =
      grid.columns > 1 && !groups.empty() &&
      std::ranges::all_of(groups, [](const auto* group) { return group->needs_index; });
  if (!index && needs_index) weight.refuse_half(base, "_g_idx");
  if (index) {
    if (index->dtype != DType::kI32 || grid.rows != stored.rows) weight.refuse(*index);
    weight.take(Role::kIndex, *index);
    weight.found.layout.index_may_be_unused = true;
  }
  return true;
}

// Refuses U8 scales unless the config says that they are E8M0 of MXFP4. They may also be UE5M3 of
// AutoRound's nvfp4_v2, and only the config distinguishes the two.
void refuse_other_scales(const Candidate& weight, std::string_view base) {
  const QuantizationConfig& config = weight.config();
  const std::string_view module = without_ending(base, ".weight");
  MatchingWork& work = weight.finder.work();
  std::vector<std::string> told;
  if (config.method.ends_with("auto-round")) {
    for (const QuantizationConfig::Exception* const own : exceptions_of(config, module, work)) {
      if (!own->data_type.empty()) told.push_back(own->data_type);
    }
    if (told.empty()) told.push_back(config.data_type);
  }
  for (const QuantizationConfig::Group* const group : groups_of(config, module, work).groups) {
    told.push_back(group->format.empty() ? config.format : group->format);
  }
  const auto is_mxint = [](const std::string& word) { return word.starts_with("mx_int"); };
  if (std::ranges::any_of(told, is_mxint)) {
    weight.refuse("MXINT4 of AutoRound is not supported: export it unquantised with that library");
  }
  const bool is_mxfp4 = !told.empty() && std::ranges::all_of(told, [](const std::string& word) {
    return word.starts_with("mx_fp") || word.starts_with("mxfp4");
  });
  if (!is_mxfp4) weight.refuse_without_config("the type of its scales (E8M0 or UE5M3)");
}

bool find_fp4_packed(Candidate& weight, std::string_view base) {
  const Tensor& tensor = weight.tensor;
  const Companion scale = weight.need(base, "_scale");
  if (tensor.shape.size() < 2) weight.refuse("its shape does not fit packed weights");
  Matrices stored = matrices_of(tensor.shape);
  stored.columns = weight.times(stored.columns, 2);
  if (scale.dtype == DType::kU8) refuse_other_scales(weight, base);
  const bool is_nvfp4 = scale.dtype == kNv.type;
  if (!is_nvfp4 && scale_type(scale.dtype) != kMx.type) {
    weight.refuse(scale, "not a valid type for a scale of FP4");
  }
  const Microscales& scales = is_nvfp4 ? kNv : kMx;
  weight.refuse_other_groups(scale, scales, stored);
  weight.set_codes(typed(DType::kF4), stored);
  weight.take_groups(scale, scales);
  weight.set_result(base, with_last(tensor.shape, stored.columns));
  if (const auto shape = weight.find(base, "_shape")) {
    if (columns_of(weight, scale, shape, {}) != stored.columns) {
      weight.refuse(*shape, "it gives another number of columns");
    }
    weight.take(Role::kShape, *shape);
  }
  const auto factor = weight.find(base, "_global_scale");
  if (is_nvfp4 && !factor) weight.refuse_half(base, "_global_scale");
  if (!is_nvfp4 && factor) weight.refuse(*factor, "MXFP4 has no global scale");
  if (factor) weight.take_factor(*factor, QuantizedLayout::Factor::kDivides);
  return true;
}

}  // namespace

bool find_packed(Candidate& weight) {
  const Tensor& tensor = weight.tensor;
  if (!tensor.name.ends_with(".weight_packed")) return false;
  const std::string_view base = without_ending(tensor.name, "_packed");
  if (tensor.dtype == DType::kI32) return find_pack_quantized(weight, base);
  if (tensor.dtype != DType::kU8) {
    weight.refuse("packed weights must be I32 or U8, not " + std::string(dtype_name(tensor.dtype)));
  }
  return find_fp4_packed(weight, base);
}

}  // namespace stfs
