// torchao: a tensor "M._weight_qdata" and its companions form the weight "M.weight". The header
// contains, as JSON, the class of each weight and the attributes of that class.
#include "core/base/text.h"
#include "core/layer/quantised/layer_texts.h"
#include "core/layer/quantised/schemes.h"

#include <algorithm>

namespace stfs {
namespace {

// The header's text about a weight, and the scale of the weight.
struct About {
  std::string base;  // what the names of all parts begin with: "M._weight"
  TorchaoTensor header;
  Companion scale;  // every class has one
};

// Returns true if the number of blocks of these sizes equals the number of scales along each
// dimension.
bool has_blocks(std::span<const std::uint64_t> block, std::span<const std::uint64_t> shape,
                std::span<const std::uint64_t> scales) {
  if (block.size() != shape.size() || scales.size() != shape.size()) return false;
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (block[i] == 0 || shape[i] % block[i] != 0 || shape[i] / block[i] != scales[i]) return false;
  }
  return true;
}

DType float_type(const Candidate& weight, const Tensor& companion) {
  const auto type = float_scale_type(companion.dtype);
  if (!type) weight.refuse(companion);
  return *type;
}

// Takes the codes, and the scales on the grid that the shape of the scales implies.
void take_scaled(Candidate& weight, const About& about, const Packing& codes) {
  const Tensor& tensor = weight.tensor;
  const Tensor& scale = about.scale;
  Matrices stored = matrices_of(tensor.shape);
  if (scale.elements() == 1) {
    // This cannot overflow, because the header was checked.
    stored = {.rows = stored.rows * stored.matrices, .columns = stored.columns};
    weight.set_codes(codes, stored);
    weight.set_grid(1, 1, stored.rows, stored.columns);
  } else {
    weight.set_codes(codes, stored);
    const Matrices grid = matrices_of(scale.shape);
    if (scale.shape.size() != tensor.shape.size() || grid.matrices != stored.matrices ||
        grid.rows == 0 || grid.columns == 0 || stored.rows % grid.rows != 0 ||
        stored.columns % grid.columns != 0) {
      weight.refuse(scale);
    }
    const auto& block = about.header.block;
    if (!block.empty() && !has_blocks(block, tensor.shape, scale.shape)) {
      weight.refuse(scale, "the header's block_size does not fit it");
    }
    weight.set_grid(grid.rows, grid.columns, stored.rows / grid.rows,
                    stored.columns / grid.columns);
  }
  weight.take_on_grid(Role::kScale, about.scale, typed(float_type(weight, scale)));
}

void take_float8(Candidate& weight, const About& about) {
  const DType type = weight.tensor.dtype;
  if (type != DType::kF8E4M3 && type != DType::kF8E5M2) {
    weight.refuse("its type does not fit a Float8Tensor");
  }
  take_scaled(weight, about, typed(type));
}

// Int8Tensor and IntxUnpackedToInt8Tensor: codes with fewer than 8 bits are stored as I8 too.
void take_int8(Candidate& weight, const About& about) {
  if (weight.tensor.dtype != DType::kI8) {
    weight.refuse("its type does not fit an " + about.header.type);
  }
  const Packing codes{.codes = Codes::kSigned};
  take_scaled(weight, about, codes);
  const auto zero = weight.find(about.base, "_zero_point");
  if (!zero) return;
  if (!std::ranges::equal(zero->shape, about.scale.shape)) weight.refuse(*zero);
  weight.take_on_grid(Role::kZero, *zero,
                      zero->dtype == DType::kI8 ? codes : typed(float_type(weight, *zero)));
}

// Returns the matrices of a tensor with two codes per byte, and sets the result's shape
// accordingly.
Matrices unpacked(Candidate& weight) {
  Matrices stored = matrices_of(weight.tensor.shape);
  if (weight.tensor.dtype != DType::kF4) stored.columns = weight.times(stored.columns, 2);
  weight.found.shape.back() = stored.columns;
  return stored;
}

// Int4Tensor: the value is code * scale + zero point. Scales and zero points are [groups, rows].
void take_int4(Candidate& weight, const About& about) {
  const Tensor& tensor = weight.tensor;
  const auto& block = about.header.block;
  const bool has_codes = tensor.dtype == DType::kI8 || tensor.dtype == DType::kU8;
  const bool has_groups =
      block.size() == tensor.shape.size() && block.back() > 0 &&
      std::all_of(block.begin(), block.end() - 1, [](auto n) { return n == 1; });
  if (!has_codes || !has_groups) {
    weight.refuse("its type or its block_size does not fit an Int4Tensor");
  }
  const Matrices stored = unpacked(weight);
  Packing codes = fields(Codes::kFields, 4, 8);
  codes.added = 8;  // two's complement
  weight.set_codes(codes, stored);
  const std::uint64_t columns =
      std::clamp<std::uint64_t>(block.back(), 1, std::max<std::uint64_t>(stored.columns, 1));
  const std::uint64_t groups = (stored.columns + columns - 1) / columns;
  weight.set_grid(stored.rows, groups, 1, columns);
  std::vector<std::uint64_t> shape = with_last(weight.found.shape, stored.rows);
  shape[shape.size() - 2] = groups;
  const Companion zero = weight.need(about.base, "_zero_point");
  for (const Tensor* const each : {&about.scale, &zero}) {
    if (!std::ranges::equal(each->shape, shape)) weight.refuse(*each);
  }
  const auto take = [&](Role role, const Companion& each) {
    weight.take_on_grid(role, each, {.codes = Codes::kByColumn, .type = float_type(weight, each)});
  };
  take(Role::kScale, about.scale);
  take(Role::kBias, zero);
}

// Takes one scale per group of columns, in rows or in the tiles of cuBLAS.
void take_microscaled(Candidate& weight, const About& about, const Microscales& scales, bool is_fp4,
                      bool keeps_matrices = false) {
  Matrices stored = is_fp4 ? unpacked(weight) : matrices_of(weight.tensor.shape);
  const DType type = about.scale.dtype;
  if (stored.columns % scales.columns != 0 || about.header.block != std::vector{scales.columns} ||
      (type != scales.type && type != DType::kU8)) {
    weight.refuse(about.scale,
                  "expected a scale for each " + std::to_string(scales.columns) + " columns");
  }
  // The tiles cover all matrices, stacked one below the other.
  if (!keeps_matrices) {
    stored = {.rows = weight.times(stored.rows, stored.matrices), .columns = stored.columns};
  } else if (about.header.has_tiles && stored.rows % 128 != 0) {
    weight.refuse(about.scale, "tiles of 128 rows that two matrices share are not supported");
  }
  weight.set_codes(typed(is_fp4 ? DType::kF4 : weight.tensor.dtype), stored);
  weight.take_groups(about.scale, scales, about.header.has_tiles);
}

void take_nvfp4(Candidate& weight, const About& about) {
  const DType type = weight.tensor.dtype;
  if (type != DType::kU8 && type != DType::kF4) {
    weight.refuse("its type does not fit an NVFP4Tensor");
  }
  const auto factor = weight.find(about.base, "_per_tensor_scale");
  const bool is_of_each = factor && factor->elements() != 1;
  if (is_of_each && factor->shape[0] != factor->elements()) {
    weight.refuse(*factor, "expected one scale for the whole tensor, or one for each matrix");
  }
  take_microscaled(weight, about, kNv, true, is_of_each);
  if (factor) weight.take_factor(*factor, QuantizedLayout::Factor::kMultiplies);
}

void take_mx(Candidate& weight, const About& about) {
  struct Element {
    std::string_view name;
    DType stored;
  };
  constexpr Element kElements[] = {{"float4_e2m1fn_x2", DType::kU8},
                                   {"float4_e2m1fn_x2", DType::kF4},
                                   {"float8_e4m3fn", DType::kF8E4M3},
                                   {"float8_e5m2", DType::kF8E5M2}};
  const std::string_view element = about.header.element;
  const DType type = weight.tensor.dtype;
  if (std::ranges::none_of(
          kElements, [&](const Element& e) { return e.name == element && e.stored == type; })) {
    weight.refuse("MXTensor of " + in_quotes(element) + " in " + std::string(dtype_name(type)) +
                  " is not supported");
  }
  take_microscaled(weight, about, kMx, type == DType::kU8 || type == DType::kF4);
}

struct Class {
  std::string_view name;
  void (*take)(Candidate& weight, const About& about);
};
constexpr Class kClasses[] = {{"Float8Tensor", take_float8},
                              {"Int8Tensor", take_int8},
                              {"IntxUnpackedToInt8Tensor", take_int8},
                              {"Int4Tensor", take_int4},
                              {"NVFP4Tensor", take_nvfp4},
                              {"MXTensor", take_mx}};

}  // namespace

bool find_torchao(Candidate& weight) {
  constexpr std::string_view kEnding = "_qdata";
  const Tensor& tensor = weight.tensor;
  const std::size_t dot = tensor.name.rfind("._");
  if (!tensor.name.ends_with(kEnding) || dot == std::string_view::npos) return false;
  const std::string base(without_ending(tensor.name, kEnding));
  if (dot + 2 >= base.size()) return false;
  weight.set_result(base.substr(0, dot + 1) + base.substr(dot + 2), tensor.shape);
  const auto text = weight.finder.metadata(weight.number, weight.found.name);
  const auto header = text ? torchao_tensor(*text) : std::nullopt;
  if (!header) {
    weight.refuse("is a tensor of torchao, but the header does not name the class of " +
                  in_quotes(weight.found.name));
  }
  weight.finder.note_unknown(weight.finder.list().part_of(weight.number), header->unknown);
  const auto* const row = std::ranges::find(kClasses, std::string_view(header->type), &Class::name);
  if (row == std::end(kClasses)) {
    weight.refuse("torchao's " + in_quotes(header->type) +
                  " is not supported: its codes are in the order of a processor; convert it with "
                  "torchao's own library");
  }
  if (tensor.shape.size() < 2) weight.refuse("its shape does not fit a weight");
  row->take(weight, {base, *header, weight.need(base, "_scale")});
  for (const char* const ending :
       {"_act_quant_scale", "_act_quant_zero_point", "_act_per_tensor_scale"}) {
    if (const auto other = weight.find(base, ending)) {
      weight.found.others.push_back(other->number);
    }
  }
  weight.take_column_scale(base, "_act_pre_scale");
  return true;
}

}  // namespace stfs
