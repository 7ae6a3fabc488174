#include "core/layer/quantised/candidate.h"

#include "core/base/text.h"

#include <algorithm>
#include <iterator>

namespace stfs {

Matrices matrices_of(std::span<const std::uint64_t> shape) {
  Matrices out;
  if (!shape.empty()) out.columns = shape.back();
  if (shape.size() > 1) out.rows = shape[shape.size() - 2];
  for (std::size_t i = 0; i + 2 < shape.size(); ++i) out.matrices *= shape[i];
  return out;
}

Packing typed(DType type) { return {.codes = Codes::kTyped, .type = type}; }

Packing fields(Codes codes, std::uint64_t bits, std::int32_t offset) {
  return {.codes = codes, .bits = static_cast<std::uint8_t>(bits), .offset = offset};
}

std::optional<Packing> packed(Packing packing, std::uint64_t rows, std::uint64_t columns,
                              std::uint64_t unit) {
  const auto row = row_bytes(packing, rows, columns);
  if (!row) return std::nullopt;
  packing.pitch = (*row + unit - 1) / unit * unit;
  const auto matrix = matrix_bytes(packing, rows, columns);
  if (!matrix) return std::nullopt;
  packing.matrix = *matrix;
  return packing;
}

bool is_fp8(DType dtype) {
  return dtype == DType::kF8E4M3 || dtype == DType::kF8E5M2 || dtype == DType::kF8E4M3Fnuz ||
         dtype == DType::kF8E5M2Fnuz;
}

std::optional<DType> scale_type(DType dtype) {
  if (dtype == DType::kU8 || dtype == DType::kF8E8M0) return DType::kF8E8M0;
  return float_scale_type(dtype);
}

std::optional<DType> float_scale_type(DType dtype) {
  const bool is_one = dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16;
  return is_one ? std::optional(dtype) : std::nullopt;
}

std::string_view without_ending(std::string_view name, std::string_view ending) {
  return name.substr(0, name.size() - ending.size());
}

bool has_rank(const Tensor& tensor, std::size_t rank) { return tensor.shape.size() == rank; }

std::vector<std::uint64_t> with_last(std::span<const std::uint64_t> shape, std::uint64_t last) {
  std::vector<std::uint64_t> out(shape.begin(), shape.end());
  out.back() = last;
  return out;
}

std::string_view Candidate::module() const {
  const bool has_ending = tensor.name.ends_with(".weight");
  return has_ending ? without_ending(tensor.name, ".weight") : tensor.name;
}

std::optional<Companion> Candidate::find(std::string_view base, std::string_view ending) const {
  const auto at = finder.find(base, ending);
  return at ? std::optional(Companion{finder.tensor(*at), *at}) : std::nullopt;
}

Companion Candidate::need(std::string_view base, std::string_view ending) const {
  const auto companion = find(base, ending);
  if (!companion) refuse_half(base, ending);
  return *companion;
}

void Candidate::refuse(const Tensor& companion, const std::string& rule) const {
  const auto kind_of = [](const Tensor& each) {
    return std::string(dtype_name(each.dtype)) + " " + shape_json(each.shape);
  };
  refuse(kind_of(tensor) + ", but " + in_quotes(companion.name) + " is " + kind_of(companion) +
         (rule.empty() ? ", which does not fit" : ": " + rule));
}

void Candidate::refuse_half(std::string_view base, std::string_view ending) const {
  refuse("has no " + in_quotes(std::string(base) + std::string(ending)) +
         " beside it: the checkpoint is not complete");
}

void Candidate::refuse_without_config(const std::string& subject) const {
  const std::string file = printable(config().file);
  refuse(config().unreadable.empty()
             ? "neither its tensors nor " + file + " give " + subject
             : "its tensors do not give " + subject + ", and " + file + ": " + config().unreadable);
}

void Candidate::refuse_other_type(const std::string& told) const {
  refuse("is " + std::string(dtype_name(tensor.dtype)) + ", but " + printable(config().file) +
         " has " + told + ": one of them is wrong");
}

void Candidate::refuse_without_zero_points(std::string_view base) const {
  const bool needs_any =
      std::ranges::any_of(config().groups, [](const auto& group) { return group.is_asymmetric; });
  if (!needs_any || finder.has_ending("_zero_point")) return;
  const GroupsOfModule own = groups_of(config(), without_ending(base, ".weight"), finder.work());
  const auto groups = own.is_told ? own.groups : all_groups(config());
  const bool has_zeros = std::ranges::all_of(
      groups, [](const auto* group) { return group->is_asymmetric && group->type != "float"; });
  if (has_zeros) refuse_half(base, "_zero_point");
}

void Candidate::refuse_conv1d(std::string_view module) const {
  const std::string& model = config().model_of_conv1d;
  if (model.empty() || !has_name_of_conv1d(module)) return;
  refuse("a Conv1D of a model of type " + in_quotes(model) +
         ": its weight may be stored transposed; convert the checkpoint with the library that made "
         "it");
}

void Candidate::refuse_of_modelopt_for_comfy() const {
  if (!finder.metadata(number, "quantization_config")) return;
  refuse(
      "NVFP4 in a file that ModelOpt wrote for ComfyUI: nothing shows the order of its scales; "
      "export it without the options for ComfyUI");
}

std::uint64_t Candidate::times(std::uint64_t a, std::uint64_t b) const {
  std::uint64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) refuse("its size overflows");
  return product;
}

Packing Candidate::pack(const Packing& packing, std::uint64_t rows, std::uint64_t columns,
                        std::uint64_t unit) const {
  const auto whole = packed(packing, rows, columns, unit);
  if (!whole) refuse("its size overflows");
  return *whole;
}

void Candidate::set_result(std::string_view name, std::span<const std::uint64_t> shape) {
  found.name = name;
  found.shape.assign(shape.begin(), shape.end());
}

void Candidate::set_codes(const Packing& packing, const Matrices& stored, std::uint64_t unit) {
  QuantizedLayout& layout = found.layout;
  layout.matrices = stored.matrices;
  layout.rows = stored.rows;
  layout.columns = stored.columns;
  layout.weight = pack(packing, stored.rows, stored.columns, unit);
  found.input(Role::kWeight) = number;
}

void Candidate::set_grid(std::uint64_t rows, std::uint64_t columns, std::uint64_t block_rows,
                         std::uint64_t block_columns) {
  found.layout.grid_rows = rows;
  found.layout.grid_columns = columns;
  found.layout.block_rows = std::max<std::uint64_t>(block_rows, 1);
  found.layout.block_columns = std::max<std::uint64_t>(block_columns, 1);
}

void Candidate::take_on_grid(Role role, const Companion& companion, const Packing& packing) {
  QuantizedLayout& layout = found.layout;
  Packing& on_grid = role == Role::kScale  ? layout.scale
                     : role == Role::kZero ? layout.zero
                                           : layout.bias;
  on_grid = pack(packing, layout.grid_rows, layout.grid_columns);
  take(role, companion);
}

void Candidate::take_groups(const Companion& scale, const Microscales& scales, bool has_tiles) {
  const QuantizedLayout& layout = found.layout;
  set_grid(layout.rows, layout.columns / scales.columns, 1, scales.columns);
  take_on_grid(Role::kScale, scale,
               {.codes = has_tiles ? Codes::kTiles : Codes::kTyped, .type = scales.type});
}

void Candidate::refuse_other_groups(const Tensor& scale, const Microscales& scales,
                                    const Matrices& stored) const {
  const Matrices grid = matrices_of(scale.shape);
  if (scale.shape.size() == tensor.shape.size() && grid.matrices == stored.matrices &&
      grid.rows == stored.rows && stored.columns % scales.columns == 0 &&
      grid.columns == stored.columns / scales.columns) {
    return;
  }
  refuse(scale, "expected a scale for each " + std::to_string(scales.columns) + " columns");
}

void Candidate::take_factor(const Companion& factor, QuantizedLayout::Factor use) {
  QuantizedLayout& layout = found.layout;
  layout.factor_is_of_matrix = factor.elements() != 1;
  if (factor.dtype != DType::kF32 ||
      (layout.factor_is_of_matrix && factor.elements() != layout.matrices)) {
    refuse(factor);
  }
  layout.factor = use;
  take(Role::kFactor, factor);
}

void Candidate::take_column_scale(std::string_view base, std::string_view ending) {
  const auto scale = find(base, ending);
  if (!scale) return;
  QuantizedLayout& layout = found.layout;
  const auto type = float_scale_type(scale->dtype);
  if (!type || !has_rank(tensor, 2) || layout.is_transposed || !has_rank(*scale, 1) ||
      scale->shape[0] != layout.columns) {
    refuse(*scale, "expected a scale for each column");
  }
  layout.column_scale = pack(typed(*type), 1, layout.columns);
  layout.column_scale.matrix = 0;
  take(Role::kColumnScale, *scale);
}

}  // namespace stfs
