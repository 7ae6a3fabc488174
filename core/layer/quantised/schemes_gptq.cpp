// GPTQ and AWQ: stored as [in, out] in words of 32 bits; the result is [out, in].
#include "core/base/text.h"
#include "core/layer/quantised/schemes.h"

#include <algorithm>

namespace stfs {
namespace {

// The tensors beside a qweight.
struct Qweight {
  std::string_view base;
  Tensor scale;
  std::uint32_t scale_number;
  std::optional<std::uint32_t> zeros;
};

Qweight qweight_of(const Finder& finder, const Tensor& tensor) {
  Qweight out;
  out.base = without_ending(tensor.name, ".qweight");
  out.scale_number = need(finder, tensor, out.base, ".scales");
  out.scale = finder.tensor(out.scale_number);
  out.zeros = finder.find(out.base, ".qzeros");
  const auto type = scale_type(out.scale.dtype);
  if (tensor.dtype != DType::kI32 || !has_rank(tensor, 2)) {
    Finder::refuse(tensor, "its shape or type is not that of GPTQ or AWQ");
  }
  if (!type || *type == DType::kF8E8M0 || !has_rank(out.scale, 2) || out.scale.shape[0] == 0) {
    refuse_companion(tensor, out.scale);
  }
  return out;
}

// How many of `rows` share a scale where there are `groups` of them. The last group may be shorter.
// The sizes that the config names for this weight come first, then the one for all.
std::uint64_t group_size_of(const Finder& finder, const QuantizationConfig& config,
                            const Tensor& tensor, std::string_view module, std::uint64_t rows,
                            std::uint64_t groups) {
  const auto cut = [&](std::uint64_t size) {
    return std::clamp<std::uint64_t>(size, 1, std::max<std::uint64_t>(rows, 1));
  };
  const auto fits = [&](std::uint64_t size) { return (rows + size - 1) / size == groups; };
  std::optional<std::uint64_t> own;
  for (const QuantizationConfig::Exception* const exception :
       exceptions_of(config, module, finder.work())) {
    if (!exception->group_size || !fits(cut(*exception->group_size))) continue;
    if (own && *own != cut(*exception->group_size)) {
      Finder::refuse(tensor, printable(config.file) + " names two sizes of its groups");
    }
    own = cut(*exception->group_size);
  }
  if (own) return *own;
  const bool may_be_equal = !config.group_size || !config.exceptions.empty();
  if (config.group_size && (fits(cut(*config.group_size)) || !may_be_equal)) {
    return cut(*config.group_size);
  }
  return rows % groups == 0 ? cut(rows / groups) : 1;
}

// Sets what both have: the grid is [groups, out], and the result the transpose.
void set_turned(const Finder& finder, const Tensor& tensor, std::uint32_t number,
                const Qweight& parts, std::uint64_t rows, std::uint64_t columns, bool has_index,
                const Packing& codes, QuantizedWeight& found) {
  refuse_conv1d(finder, number, tensor, parts.base);
  const QuantizationConfig& config = finder.config(number);
  QuantizedLayout& layout = found.layout;
  const std::uint64_t groups = parts.scale.shape[0];
  layout.rows = rows;
  layout.columns = columns;
  layout.is_transposed = true;
  layout.weight = packed_or_refuse(tensor, codes, rows, columns, 4);
  const std::uint64_t group = group_size_of(finder, config, tensor, parts.base, rows, groups);
  if (parts.scale.shape[1] != columns || (rows + group - 1) / group != groups) {
    if (has_index) refuse_companion(tensor, parts.scale, "it has another number of groups");
    refuse_companion(tensor, parts.scale);
  }
  layout.block_rows = group;
  layout.grid_rows = groups;
  layout.grid_columns = columns;
  layout.scale = packed_or_refuse(tensor, typed(parts.scale.dtype), groups, columns);
  found.name = std::string(parts.base) + ".weight";
  found.shape = {columns, rows};
  found.input(Role::kWeight) = number;
  found.input(Role::kScale) = parts.scale_number;
}

// Whether the first zeros are the middle of all codes, as either version of GPTQ stores it.
bool is_of_symmetric(std::uint32_t word, std::uint64_t bits) {
  const std::uint32_t first = word & ((1U << bits) - 1);
  const std::uint32_t middle = 1U << (bits - 1);
  bool is_same = first == middle || first == middle - 1;
  for (std::uint64_t at = 0; at + bits <= 32; at += bits) {
    is_same = is_same && (word >> at & ((1U << bits) - 1)) == first;
  }
  return is_same;
}

// The number of bits by the width of the zeros; 0 when that leaves a choice.
std::uint64_t bits_of_zeros(const Finder& finder, const Qweight& parts) {
  if (!parts.zeros) return 0;
  const Tensor zeros = finder.tensor(*parts.zeros);
  const std::uint64_t columns = parts.scale.shape[1];
  std::uint64_t bits = 0;
  if (!has_rank(zeros, 2) || columns == 0 || __builtin_mul_overflow(zeros.shape[1], 32, &bits)) {
    return 0;
  }
  return bits % columns == 0 ? bits / columns : 0;
}

}  // namespace

bool find_gptq(const Finder& finder, std::uint32_t number, const Tensor& tensor,
               QuantizedWeight& found) {
  if (!tensor.name.ends_with(".qweight")) return false;
  const Qweight parts = qweight_of(finder, tensor);
  if (parts.scale.shape[1] != tensor.shape[1]) return false;  // AWQ
  const QuantizationConfig& config = finder.config(number);
  if (config.method != "gptq" && config.method != "auto-round" &&
      config.method != "intel/auto-round") {
    if (config.method.empty()) refuse_without_config(finder, number, tensor, "the version of GPTQ");
    Finder::refuse(tensor, "stored as by GPTQ, but " + printable(config.file) +
                               " names quant_method " + in_quotes(config.method));
  }
  // AutoRound's own layout stores zeros as they are, as GPTQ's second version.
  const bool is_v2 = config.format == "gptq_v2" || config.format == "auto_round" ||
                     config.format == "auto_round:gptqmodel";
  // Older ones name no layout; of symmetric weights both are alike.
  const bool names_none = config.format.empty() && (config.method == "gptq" || config.is_symmetric);
  const bool is_v1 = names_none || config.format == "gptq" ||
                     config.format == "auto_round:auto_gptq" || config.format == "auto_round:gptq";
  if (!is_v1 && !is_v2) {
    Finder::refuse(tensor, "the layout " + in_quotes(config.format) + " of GPTQ is not supported");
  }
  const auto index_number = finder.find(parts.base, ".g_idx");
  std::uint64_t bits =
      config.exceptions.empty() ? config.bits.value_or(0) : bits_of_zeros(finder, parts);
  std::uint64_t word_bits = 0;
  if (__builtin_mul_overflow(tensor.shape[0], 32, &word_bits))
    Finder::refuse(tensor, "its size overflows");
  if (index_number) {
    const Tensor index = finder.tensor(*index_number);
    const std::uint64_t rows = index.elements();
    if (index.dtype != DType::kI32 || !has_rank(index, 1) || rows == 0 || word_bits % rows != 0) {
      refuse_companion(tensor, index);
    }
    if (bits == 0) bits = word_bits / rows;
    if (bits != word_bits / rows)
      refuse_companion(tensor, index, "the bits of config.json do not fit");
    found.input(Role::kIndex) = *index_number;
  }
  if (bits == 0) bits = config.bits.value_or(0);
  if (bits == 0) refuse_without_config(finder, number, tensor, "the number of bits");
  if (bits != 2 && bits != 3 && bits != 4 && bits != 8) {
    Finder::refuse(
        tensor, "GPTQ with " + std::to_string(bits) + " bits is not supported: 2, 3, 4 or 8 are");
  }
  if (word_bits % bits != 0) {
    Finder::refuse(
        tensor, std::to_string(tensor.shape[0]) + " rows of words hold no whole number of codes");
  }
  const std::uint64_t rows = word_bits / bits;
  set_turned(finder, tensor, number, parts, rows, tensor.shape[1], index_number.has_value(),
             fields(Codes::kDown, bits), found);
  if (config.needs_index && !index_number && found.layout.grid_rows > 1) {
    refuse_half(tensor, parts.base, ".g_idx");
  }
  found.layout.index_is_of_rows = true;
  if (!parts.zeros) refuse_half(tensor, parts.base, ".qzeros");
  const Tensor zeros = finder.tensor(*parts.zeros);
  Packing zero = fields(Codes::kFields, bits);
  zero.added = is_v1 ? 1 : 0;
  if (is_v1 && config.has_borrowed_zeros && bits != 3) zero.codes = Codes::kCarried;
  zero = packed_or_refuse(tensor, zero, found.layout.grid_rows, found.layout.grid_columns, 4);
  if (zeros.dtype != DType::kI32 || !has_rank(zeros, 2) ||
      zeros.shape[0] != found.layout.grid_rows || zeros.shape[1] != zero.pitch / 4) {
    refuse_companion(tensor, zeros);
  }
  if (config.is_symmetric) {
    // Some store them as the second version does, and name the first: Qwen3.5's GPTQ-Int4.
    if (const auto word = finder.first_word(zeros); word && !is_of_symmetric(*word, bits)) {
      refuse_companion(tensor, zeros, "zero points of a symmetric weight are all the same");
    }
    found.layout.weight.offset = std::int32_t{1} << (bits - 1);
    found.others.push_back(*parts.zeros);
    return true;
  }
  found.layout.zero = zero;
  found.input(Role::kZero) = *parts.zeros;
  return true;
}

bool find_awq(const Finder& finder, std::uint32_t number, const Tensor& tensor,
              QuantizedWeight& found) {
  if (!tensor.name.ends_with(".qweight")) return false;
  const Qweight parts = qweight_of(finder, tensor);
  const QuantizationConfig& config = finder.config(number);
  std::uint64_t columns = 0;
  const bool is_gemm =
      (config.format.empty() || config.format == "gemm" || config.format == "auto_round:auto_awq" ||
       config.format == "auto_round:awq") &&
      !__builtin_mul_overflow(tensor.shape[1], 8, &columns) && columns == parts.scale.shape[1];
  if (!is_gemm || (config.method != "awq" && !config.method.ends_with("auto-round") &&
                   !config.method.empty())) {
    Finder::refuse(tensor, "neither the layout of GPTQ nor that of AWQ's GEMM" +
                               (config.format.empty() ? "" : ": " + in_quotes(config.format)) +
                               "; others are not supported");
  }
  if (config.bits.value_or(4) != 4)
    Finder::refuse(tensor, "AWQ with other than 4 bits is not supported");
  if (!parts.zeros && config.zero_point != false) refuse_half(tensor, parts.base, ".qzeros");
  Packing codes = fields(Codes::kInterleaved, 4, parts.zeros ? 0 : 8);
  set_turned(finder, tensor, number, parts, tensor.shape[0], columns, false, codes, found);
  if (!parts.zeros) return true;
  const Tensor zeros = finder.tensor(*parts.zeros);
  const Packing zero =
      packed_or_refuse(tensor, fields(Codes::kInterleaved, 4), found.layout.grid_rows, columns, 4);
  if (zeros.dtype != DType::kI32 || !has_rank(zeros, 2) ||
      zeros.shape[0] != found.layout.grid_rows || zeros.shape[1] != tensor.shape[1]) {
    refuse_companion(tensor, zeros);
  }
  found.layout.zero = zero;
  found.input(Role::kZero) = *parts.zeros;
  return true;
}

}  // namespace stfs
