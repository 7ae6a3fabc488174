// torchao: a tensor "M._weight_qdata" with its companions is the weight "M.weight". The header has
// the class of each weight and its attributes as JSON.
#include "core/base/text.h"
#include "core/layer/quantised/layer_texts.h"
#include "core/layer/quantised/schemes.h"

#include <algorithm>
#include <array>

namespace stfs {
namespace {

// A weight and what is said of it.
struct Weight {
  const Finder& finder;
  std::uint32_t number;
  const Tensor& qdata;
  std::string base;  // of all its parts: "M._weight"
  TorchaoTensor about;
};

// Whether blocks of these sizes have as many scales along each dimension.
bool has_blocks(std::span<const std::uint64_t> block, std::span<const std::uint64_t> shape,
                std::span<const std::uint64_t> scales) {
  if (block.size() != shape.size() || scales.size() != shape.size()) return false;
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (block[i] == 0 || shape[i] % block[i] != 0 || shape[i] / block[i] != scales[i]) return false;
  }
  return true;
}

// Sets the grid by the shape of the scales, and packs the codes.
void set_grid(const Weight& weight, const Tensor& scale, const Packing& codes,
              QuantizedLayout& layout) {
  layout.weight = packed_or_refuse(weight.qdata, codes, layout.rows, layout.columns);
  if (scale.elements() == 1) {
    layout.rows *= layout.matrices;  // the header's check excludes overflow
    layout.matrices = 1;
    layout.weight = packed_or_refuse(weight.qdata, codes, layout.rows, layout.columns);
    layout.grid_rows = layout.grid_columns = 1;
    layout.block_rows = std::max<std::uint64_t>(layout.rows, 1);
    layout.block_columns = std::max<std::uint64_t>(layout.columns, 1);
    return;
  }
  const Matrices grid = matrices_of(scale.shape);
  if (scale.shape.size() != weight.qdata.shape.size() || grid.matrices != layout.matrices ||
      grid.rows == 0 || grid.columns == 0 || layout.rows % grid.rows != 0 ||
      layout.columns % grid.columns != 0) {
    refuse_companion(weight.qdata, scale);
  }
  if (!weight.about.block.empty() &&
      !has_blocks(weight.about.block, weight.qdata.shape, scale.shape)) {
    refuse_companion(weight.qdata, scale, "the header's block_size does not fit it");
  }
  layout.grid_rows = grid.rows;
  layout.grid_columns = grid.columns;
  layout.block_rows = std::max<std::uint64_t>(layout.rows / grid.rows, 1);
  layout.block_columns = std::max<std::uint64_t>(layout.columns / grid.columns, 1);
}

// The scale, which every class has.
Tensor take_scale(const Weight& weight, QuantizedWeight& found) {
  found.input(Role::kScale) = need(weight.finder, weight.qdata, weight.base, "_scale");
  return weight.finder.tensor(found.input(Role::kScale));
}

DType float_type(const Weight& weight, const Tensor& companion) {
  const auto type = scale_type(companion.dtype);
  if (!type || *type == DType::kF8E8M0) refuse_companion(weight.qdata, companion);
  return *type;
}

void take_float8(const Weight& weight, QuantizedWeight& found) {
  const Tensor scale = take_scale(weight, found);
  if (weight.qdata.dtype != DType::kF8E4M3 && weight.qdata.dtype != DType::kF8E5M2) {
    Finder::refuse(weight.qdata, "its type is not that of a Float8Tensor");
  }
  set_grid(weight, scale, typed(weight.qdata.dtype), found.layout);
  found.layout.scale = packed_or_refuse(weight.qdata, typed(float_type(weight, scale)),
                                        found.layout.grid_rows, found.layout.grid_columns);
}

// Int8Tensor and IntxUnpackedToInt8Tensor: codes of fewer bits are stored as I8 too.
void take_int8(const Weight& weight, QuantizedWeight& found) {
  const Tensor scale = take_scale(weight, found);
  if (weight.qdata.dtype != DType::kI8) {
    Finder::refuse(weight.qdata, "its type is not that of an " + weight.about.type);
  }
  QuantizedLayout& layout = found.layout;
  set_grid(weight, scale, {.codes = Codes::kSigned}, layout);
  layout.scale = packed_or_refuse(weight.qdata, typed(float_type(weight, scale)), layout.grid_rows,
                                  layout.grid_columns);
  const auto zero_number = weight.finder.find(weight.base, "_zero_point");
  if (!zero_number) return;
  const Tensor zero = weight.finder.tensor(*zero_number);
  if (!std::ranges::equal(zero.shape, scale.shape)) refuse_companion(weight.qdata, zero);
  const Packing zeros =
      zero.dtype == DType::kI8 ? Packing{.codes = Codes::kSigned} : typed(float_type(weight, zero));
  layout.zero = packed_or_refuse(weight.qdata, zeros, layout.grid_rows, layout.grid_columns);
  found.input(Role::kZero) = *zero_number;
}

void unpack_last(const Weight& weight, QuantizedWeight& found) {
  if (__builtin_mul_overflow(found.layout.columns, 2, &found.layout.columns)) {
    Finder::refuse(weight.qdata, "its size overflows");
  }
  found.shape.back() = found.layout.columns;
}

// Int4Tensor: the value is code * scale + zero point; scales and zero points are [groups, rows].
void take_int4(const Weight& weight, QuantizedWeight& found) {
  const Tensor scale = take_scale(weight, found);
  const auto& block = weight.about.block;
  const bool has_codes = weight.qdata.dtype == DType::kI8 || weight.qdata.dtype == DType::kU8;
  const bool has_groups =
      block.size() == weight.qdata.shape.size() && block.back() > 0 &&
      std::all_of(block.begin(), block.end() - 1, [](auto n) { return n == 1; });
  if (!has_codes || !has_groups) {
    Finder::refuse(weight.qdata, "its type or its block_size is not that of an Int4Tensor");
  }
  unpack_last(weight, found);
  QuantizedLayout& layout = found.layout;
  Packing codes = fields(Codes::kFields, 4, 8);
  codes.added = 8;  // two's complement
  layout.weight = packed_or_refuse(weight.qdata, codes, layout.rows, layout.columns);
  layout.block_columns =
      std::clamp<std::uint64_t>(block.back(), 1, std::max<std::uint64_t>(layout.columns, 1));
  layout.grid_rows = layout.rows;
  layout.grid_columns = (layout.columns + layout.block_columns - 1) / layout.block_columns;
  std::vector<std::uint64_t> shape = with_last(found.shape, layout.rows);
  shape[shape.size() - 2] = layout.grid_columns;
  const std::uint32_t zero_number = need(weight.finder, weight.qdata, weight.base, "_zero_point");
  const Tensor zero = weight.finder.tensor(zero_number);
  for (const Tensor* const each : {&scale, &zero}) {
    if (!std::ranges::equal(each->shape, shape)) refuse_companion(weight.qdata, *each);
  }
  const auto turned = [&](const Tensor& each) {
    return packed_or_refuse(weight.qdata,
                            {.codes = Codes::kTurned, .type = float_type(weight, each)},
                            layout.grid_rows, layout.grid_columns);
  };
  layout.scale = turned(scale);
  layout.bias = turned(zero);
  found.input(Role::kBias) = zero_number;
}

// NVFP4Tensor and MXTensor: a scale for each `group` columns, in rows or in the tiles of cuBLAS.
void take_groups(const Weight& weight, std::uint64_t group, DType type, bool is_fp4,
                 QuantizedWeight& found) {
  const Tensor scale = take_scale(weight, found);
  QuantizedLayout& layout = found.layout;
  if (is_fp4) unpack_last(weight, found);
  if (layout.columns % group != 0 || weight.about.block != std::vector{group} ||
      (scale.dtype != type && scale.dtype != DType::kU8)) {
    refuse_companion(weight.qdata, scale,
                     "a scale for each " + std::to_string(group) + " columns is expected");
  }
  layout.grid_columns = layout.columns / group;
  layout.block_columns = group;
  // The tiles are those of all matrices one below the other.
  if (__builtin_mul_overflow(layout.rows, layout.matrices, &layout.rows)) {
    Finder::refuse(weight.qdata, "its size overflows");
  }
  layout.matrices = 1;
  layout.grid_rows = layout.rows;
  const Packing codes = typed(is_fp4 ? DType::kF4 : weight.qdata.dtype);
  layout.weight = packed_or_refuse(weight.qdata, codes, layout.rows, layout.columns);
  const Packing scales =
      weight.about.has_tiles ? Packing{.codes = Codes::kTiles, .type = type} : typed(type);
  layout.scale = packed_or_refuse(weight.qdata, scales, layout.grid_rows, layout.grid_columns);
}

void take_nvfp4(const Weight& weight, QuantizedWeight& found) {
  if (weight.qdata.dtype != DType::kU8) {
    Finder::refuse(weight.qdata, "its type is not that of an NVFP4Tensor");
  }
  take_groups(weight, 16, DType::kF8E4M3, true, found);
  const auto factor_number = weight.finder.find(weight.base, "_per_tensor_scale");
  if (!factor_number) return;
  const Tensor factor = weight.finder.tensor(*factor_number);
  if (factor.dtype != DType::kF32 || factor.elements() != 1) {
    refuse_companion(weight.qdata, factor, "one scale of the whole tensor is expected");
  }
  found.input(Role::kFactor) = *factor_number;
}

void take_mx(const Weight& weight, QuantizedWeight& found) {
  const std::string& element = weight.about.element;
  const bool is_fp4 = element == "float4_e2m1fn_x2";
  const bool is_e4m3 = element == "float8_e4m3fn" && weight.qdata.dtype == DType::kF8E4M3;
  const bool is_e5m2 = element == "float8_e5m2" && weight.qdata.dtype == DType::kF8E5M2;
  if (!is_e4m3 && !is_e5m2 && !(is_fp4 && weight.qdata.dtype == DType::kU8)) {
    Finder::refuse(weight.qdata, "MXTensor of " + in_quotes(element) + " in " +
                                     std::string(dtype_name(weight.qdata.dtype)) +
                                     " is not supported");
  }
  take_groups(weight, 32, DType::kF8E8M0, is_fp4, found);
}

struct Class {
  std::string_view name;
  void (*take)(const Weight& weight, QuantizedWeight& found);
};

constexpr std::array kClasses{Class{"Float8Tensor", take_float8},
                              Class{"Int8Tensor", take_int8},
                              Class{"IntxUnpackedToInt8Tensor", take_int8},
                              Class{"Int4Tensor", take_int4},
                              Class{"NVFP4Tensor", take_nvfp4},
                              Class{"MXTensor", take_mx}};

}  // namespace

bool find_torchao(const Finder& finder, std::uint32_t number, const Tensor& tensor,
                  QuantizedWeight& found) {
  constexpr std::string_view kEnding = "_qdata";
  const std::size_t dot = tensor.name.rfind("._");
  if (!tensor.name.ends_with(kEnding) || dot == std::string_view::npos) return false;
  Weight weight{.finder = finder,
                .number = number,
                .qdata = tensor,
                .base = std::string(without_ending(tensor.name, kEnding)),
                .about = {}};
  if (dot + 2 >= weight.base.size()) return false;
  found.name = weight.base.substr(0, dot + 1) + weight.base.substr(dot + 2);
  const auto text = finder.metadata(number, found.name);
  const auto about = text ? torchao_tensor(*text) : std::nullopt;
  if (!about) {
    Finder::refuse(tensor, "is of torchao, and the header does not tell the class of " +
                               in_quotes(found.name));
  }
  weight.about = *about;
  finder.note_unknown(finder.list().part_of(number), about->unknown);
  const auto row = std::ranges::find(kClasses, std::string_view(about->type), &Class::name);
  if (row == kClasses.end()) {
    Finder::refuse(tensor, "torchao's " + in_quotes(about->type) +
                               " is not supported: its codes are in the order of a processor; "
                               "convert it with torchao's own library");
  }
  if (tensor.shape.size() < 2) Finder::refuse(tensor, "its shape is not that of a weight");
  const Matrices all = matrices_of(tensor.shape);
  found.shape.assign(tensor.shape.begin(), tensor.shape.end());
  found.layout.matrices = all.matrices;
  found.layout.rows = all.rows;
  found.layout.columns = all.columns;
  found.input(Role::kWeight) = number;
  row->take(weight, found);
  for (const char* const ending :
       {"_act_quant_scale", "_act_quant_zero_point", "_act_per_tensor_scale"}) {
    if (const auto other = finder.find(weight.base, ending)) found.others.push_back(*other);
  }
  add_column_scale(finder, tensor, weight.base, "_act_pre_scale", found);
  return true;
}

}  // namespace stfs
