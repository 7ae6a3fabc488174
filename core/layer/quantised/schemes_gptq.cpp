// GPTQ and AWQ: stored as [in, out] in 32-bit words. The result is [out, in].
#include "core/base/text.h"
#include "core/layer/quantised/schemes.h"

#include <algorithm>
#include <iterator>

namespace stfs {
namespace {

// The tensors beside a qweight.
struct Qweight {
  std::string_view base;
  Companion scale;
  std::optional<Companion> zeros;
};

Qweight qweight_of(const Candidate& weight) {
  const std::string_view base = without_ending(weight.tensor.name, ".qweight");
  const Qweight out{base, weight.need(base, ".scales"), weight.find(base, ".qzeros")};
  if (weight.tensor.dtype != DType::kI32 || !has_rank(weight.tensor, 2)) {
    weight.refuse("its shape and type do not fit GPTQ or AWQ");
  }
  if (!float_scale_type(out.scale.dtype) || !has_rank(out.scale, 2) || out.scale.shape[0] == 0) {
    weight.refuse(out.scale);
  }
  return out;
}

// Returns how many of `rows` share a scale if there are `groups` scales. The last group may be
// shorter. A size that the config names for this weight takes precedence over its general size.
std::uint64_t group_size_of(const Candidate& weight, std::string_view module, std::uint64_t rows,
                            std::uint64_t groups) {
  const QuantizationConfig& config = weight.config();
  const auto cut = [&](std::uint64_t size) {
    return std::clamp<std::uint64_t>(size, 1, std::max<std::uint64_t>(rows, 1));
  };
  const auto fits = [&](std::uint64_t size) { return (rows + size - 1) / size == groups; };
  std::optional<std::uint64_t> own;
  for (const QuantizationConfig::Exception* const exception :
       exceptions_of(config, module, weight.finder.work())) {
    if (!exception->group_size || !fits(cut(*exception->group_size))) continue;
    if (own && *own != cut(*exception->group_size)) {
      weight.refuse(printable(config.file) + " gives two different sizes of its groups");
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

// Returns true for the table of an embedding, which GPTQModel stores without transposing: its rows
// are the words, and its columns correspond to the columns of a Linear. Refuses the weight if its
// name and the vocab_size in config.json disagree.
bool is_table(const Candidate& weight, std::string_view module, std::uint64_t rows) {
  constexpr std::string_view kNames[] = {"wte", "wpe", "shared"};
  const std::string_view layer = module.substr(module.rfind('.') + 1);
  const bool is_embedding =
      layer.find("embed") != std::string_view::npos &&
      layer.find("proj") == std::string_view::npos;  // a Linear beside a table
  if (!is_embedding && std::ranges::find(kNames, layer) == std::end(kNames)) return false;
  if (!weight.config().vocabularies.contains(rows)) {
    weight.refuse("may be a table of embeddings, and then its " + std::to_string(rows) +
                  " rows are words, but " + printable(weight.config().file) +
                  " has no such vocab_size: nothing shows whether it is transposed; convert the "
                  "checkpoint with the library that made it");
  }
  return true;
}

// Sets what GPTQ and AWQ have in common: the grid is [groups, out], and the result is the
// transpose, except for a table of embeddings.
void set_transposed(Candidate& weight, const Qweight& parts, const Packing& codes,
                    std::uint64_t rows, std::uint64_t columns, bool has_index) {
  weight.refuse_conv1d(parts.base);
  const std::uint64_t groups = parts.scale.shape[0];
  weight.set_codes(codes, {.rows = rows, .columns = columns}, 4);
  const bool is_transposed = !is_table(weight, parts.base, rows);
  weight.found.layout.is_transposed = is_transposed;
  const std::uint64_t group = group_size_of(weight, parts.base, rows, groups);
  if (parts.scale.shape[1] != columns || (rows + group - 1) / group != groups) {
    weight.refuse(parts.scale, has_index ? "it has another number of groups" : "");
  }
  weight.set_grid(groups, columns, group, 1);
  weight.take_on_grid(Role::kScale, parts.scale, typed(parts.scale.dtype));
  weight.set_result(std::string(parts.base) + ".weight",
                    is_transposed ? std::array{columns, rows} : std::array{rows, columns});
}

// Returns the packing of zero points on the grid. Refuses zero points of another shape.
Packing packing_of_zeros(const Candidate& weight, const Tensor& zeros, const Packing& fields) {
  const QuantizedLayout& layout = weight.found.layout;
  const Packing packing = weight.pack(fields, layout.grid_rows, layout.grid_columns, 4);
  if (zeros.dtype != DType::kI32 || !has_rank(zeros, 2) || zeros.shape[0] != layout.grid_rows ||
      zeros.shape[1] != packing.pitch / 4) {
    weight.refuse(zeros);
  }
  return packing;
}

void take_zeros(Candidate& weight, const Companion& zeros, const Packing& packing) {
  weight.found.layout.zero = packing;
  weight.take(Role::kZero, zeros);
}

// Returns the first zero point of a word if all its zero points are equal and are the middle of the
// codes, as either version of GPTQ stores the middle.
std::optional<std::uint32_t> field_of_symmetric(std::uint32_t word, std::uint64_t bits) {
  const std::uint32_t mask = (1U << bits) - 1;
  const std::uint32_t first = word & mask;
  const std::uint32_t middle = 1U << (bits - 1);
  if (first != middle && first != middle - 1) return std::nullopt;
  for (std::uint64_t at = 0; at + bits <= 32; at += bits) {
    if ((word >> at & mask) != first) return std::nullopt;
  }
  return first;
}

// Returns the number of bits according to the width of the zeros, or 0 if the width does not
// determine it.
std::uint64_t bits_of_zeros(const Qweight& parts) {
  const std::uint64_t columns = parts.scale.shape[1];
  std::uint64_t bits = 0;
  if (!parts.zeros || !has_rank(*parts.zeros, 2) || columns == 0 ||
      __builtin_mul_overflow(parts.zeros->shape[1], 32, &bits)) {
    return 0;
  }
  return bits % columns == 0 ? bits / columns : 0;
}

// Returns true if `format` is one of these words.
bool is_any_of(std::string_view format, std::initializer_list<std::string_view> words) {
  return std::ranges::find(words, format) != words.end();
}

}  // namespace

bool find_gptq(Candidate& weight) {
  const Tensor& tensor = weight.tensor;
  if (!tensor.name.ends_with(".qweight")) return false;
  const Qweight parts = qweight_of(weight);
  if (parts.scale.shape[1] != tensor.shape[1]) return false;  // AWQ
  const QuantizationConfig& config = weight.config();
  if (!is_any_of(config.method, {"gptq", "auto-round", "intel/auto-round"})) {
    if (config.method.empty()) weight.refuse_without_config("the version of GPTQ");
    weight.refuse("is stored like GPTQ, but " + printable(config.file) + " names quant_method " +
                  in_quotes(config.method));
  }
  // AutoRound's own layout stores zeros unchanged, like GPTQ's second version.
  const bool is_v2 = is_any_of(config.format, {"gptq_v2", "auto_round", "auto_round:gptqmodel"});
  // Older files do not name a layout. For symmetric weights both versions are detected below.
  const bool names_none = config.format.empty() && (config.method == "gptq" || config.is_symmetric);
  const bool is_v1 =
      names_none || is_any_of(config.format, {"gptq", "auto_round:auto_gptq", "auto_round:gptq"});
  if (!is_v1 && !is_v2) {
    weight.refuse("the layout " + in_quotes(config.format) + " of GPTQ is not supported");
  }
  const auto index = weight.find(parts.base, ".g_idx");
  std::uint64_t bits = config.exceptions.empty() ? config.bits.value_or(0) : bits_of_zeros(parts);
  const std::uint64_t word_bits = weight.times(tensor.shape[0], 32);
  if (index) {
    const std::uint64_t rows = index->elements();
    if (index->dtype != DType::kI32 || !has_rank(*index, 1) || rows == 0 || word_bits % rows != 0) {
      weight.refuse(*index);
    }
    if (bits == 0) bits = word_bits / rows;
    if (bits != word_bits / rows)
      weight.refuse(*index, "the number of bits in config.json does not fit");
    weight.take(Role::kIndex, *index);
  }
  if (bits == 0) bits = config.bits.value_or(0);
  if (bits == 0) weight.refuse_without_config("the number of bits");
  if (bits != 2 && bits != 3 && bits != 4 && bits != 8) {
    weight.refuse("GPTQ with " + std::to_string(bits) +
                  " bits is not supported, only 2, 3, 4 and 8 are");
  }
  if (word_bits % bits != 0) {
    weight.refuse(std::to_string(tensor.shape[0]) +
                  " rows of words do not hold a whole number of codes");
  }
  set_transposed(weight, parts, fields(Codes::kDown, bits), word_bits / bits, tensor.shape[1],
                 index.has_value());
  QuantizedLayout& layout = weight.found.layout;
  if (config.needs_index && !index && layout.grid_rows > 1) {
    weight.refuse_half(parts.base, ".g_idx");
  }
  layout.index_is_of_rows = true;
  if (!parts.zeros) weight.refuse_half(parts.base, ".qzeros");
  if (is_v1 && bits == 3 && config.is_of_auto_round && !config.is_symmetric) {
    weight.refuse(
        "AutoRound's packing of 3-bit zero points loses some of them if one is 0: quantise the "
        "model with sym, or with 2, 4 or 8 bits");
  }
  Packing zero = fields(Codes::kFields, bits);
  zero.added = is_v1 ? 1 : 0;
  // Some files name the first version, but store the zero points of symmetric weights as in the
  // second version (Qwen3.5's GPTQ-Int4). The first word shows which one it is.
  if (const auto word =
          config.is_symmetric ? weight.finder.first_word(*parts.zeros) : std::nullopt) {
    const auto first = field_of_symmetric(*word, bits);
    if (!first)
      weight.refuse(*parts.zeros, "the zero points of a symmetric weight must all be equal");
    zero.added = *first == 1U << (bits - 1) ? 0 : 1;
  }
  if (zero.added == 1 && config.has_borrowed_zeros && bits != 3) zero.codes = Codes::kCarried;
  take_zeros(weight, *parts.zeros, packing_of_zeros(weight, *parts.zeros, zero));
  return true;
}

bool find_awq(Candidate& weight) {
  const Tensor& tensor = weight.tensor;
  if (!tensor.name.ends_with(".qweight")) return false;
  const Qweight parts = qweight_of(weight);
  const QuantizationConfig& config = weight.config();
  std::uint64_t columns = 0;
  const bool is_gemm =
      is_any_of(config.format, {"", "gemm", "auto_round:auto_awq", "auto_round:awq"}) &&
      !__builtin_mul_overflow(tensor.shape[1], 8, &columns) && columns == parts.scale.shape[1];
  if (!is_gemm || (config.method != "awq" && !config.method.ends_with("auto-round") &&
                   !config.method.empty())) {
    weight.refuse("only the layouts of GPTQ and of AWQ's GEMM are supported" +
                  (config.format.empty() ? "" : ", not " + in_quotes(config.format)));
  }
  if (config.bits.value_or(4) != 4) weight.refuse("only AWQ with 4 bits is supported");
  if (!parts.zeros && config.zero_point != false) weight.refuse_half(parts.base, ".qzeros");
  set_transposed(weight, parts, fields(Codes::kInterleaved, 4, parts.zeros ? 0 : 8),
                 tensor.shape[0], columns, false);
  if (parts.zeros) {
    const Packing zero = fields(Codes::kInterleaved, 4);
    take_zeros(weight, *parts.zeros, packing_of_zeros(weight, *parts.zeros, zero));
  }
  return true;
}

}  // namespace stfs
