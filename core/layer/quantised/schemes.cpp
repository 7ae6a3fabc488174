#include "core/layer/quantised/schemes.h"

#include "core/base/error.h"
#include "core/base/text.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <set>
#include <utility>

namespace stfs {
namespace {

// clang-format off
constexpr Scheme kSchemes[] = {
    {"GGUF blocks",                     find_gguf},
    {"bitsandbytes 4-bit",              find_bnb4},
    {"bitsandbytes int8",               find_bnb8},
    {"compressed-tensors, packed",      find_packed},
    {"MXFP4 of gpt-oss",                find_gpt_oss},
    {"MLX",                             find_mlx},
    {"GPTQ",                            find_gptq},
    {"AWQ",                             find_awq},
    {"torchao",                         find_torchao},
    {"ComfyUI NVFP4 or MXFP8",          find_comfy},
    {"ModelOpt INT4",                   find_modelopt_int4},
    {"Quark",                           find_quark},
    {"FP8 with scales",                 find_fp8},
    {"FP4 with scales",                 find_fp4},
    {"INT8 with scales",                find_int8},
};
// clang-format on

bool find_plain(const Finder&, std::uint32_t, const Tensor&, QuantizedWeight&);
constexpr Scheme kPlain{"FP8 without scales", find_plain};

// The endings of names that rows ask for.
// clang-format off
constexpr std::string_view kEndings[] = {
    ".scale", "_scale", "_scale_inv", "_scale_2", "_weight_scale", "_weight_scale_2",
    ".scale_weight", ".qscale_weight",                              // ComfyUI, Mistral
    "_zero_point", "_g_idx", "_shape", "_global_scale",             // compressed-tensors
    ".scales", ".biases", ".qbiases",                               // MLX
    ".absmax", ".nested_absmax", ".nested_quant_map", ".quant_map", ".SCB", ".weight_format",
    ".quant_state.bitsandbytes__nf4", ".quant_state.bitsandbytes__fp4",
    "_scales",                                                      // gpt-oss
    ".qzeros", ".g_idx",                                            // GPTQ, AWQ
    "_chan_scale",                                                  // compressed-tensors, W4A8
    ".comfy_quant",                                                 // ComfyUI
    ".pre_quant_scale",                                             // ModelOpt
    "_qdata", "_per_tensor_scale", "_act_pre_scale",                // torchao
    "_act_quant_scale", "_act_quant_zero_point", "_act_per_tensor_scale",
    "_scb",                                                         // GPTQModel's bitsandbytes
    "_absmax", "_quant_map", "_nested_absmax", "_nested_quant_map", "_quant_state",
};
static_assert(std::size(kEndings) <= 64, "a bit each");
// clang-format on

struct Named {
  std::string_view ending;
  std::string_view reason;
};

// Weights that are no function of the stored numbers alone, or in layouts that are not known.
// clang-format off
constexpr Named kRefused[] = {
    {".svdquant_lora_a",          "SVDQuant adds a product of two small matrices: not supported"},
    {".svdquant_lora_b",          "SVDQuant adds a product of two small matrices: not supported"},
    {".forward_hadamard_matrix",  "its weights are rotated (FP-Quant): the rotation would have to be undone"},
    {".backward_hadamard_matrix", "its weights are rotated (FP-Quant): the rotation would have to be undone"},
    {".W_q",                      "HQQ is not supported: convert it with HQQ's own library"},
    {".weight._data",             "quanto is not supported: convert it with quanto's own library"},
    {".weight._scale",            "quanto is not supported: convert it with quanto's own library"},
    {".trellis",                  "EXL3 is not supported: its codes are a path through a trellis"},
    {".codebooks",                "AQLM is not supported: its codes are indices of codebooks"},
    {".centroids.weight",         "VPTQ is not supported: its codes are indices of codebooks"},
    {".res_centroids.weight",     "VPTQ is not supported: its codes are indices of codebooks"},
    {".q_weight",                 "EXL2 is not supported: its groups have different numbers of bits"},
    {".q_perm",                   "EXL2 is not supported: its groups have different numbers of bits"},
    {".weight_bitmask",           "sparse weights of compressed-tensors are not supported"},
    {".weight.bitmask",           "sparse weights of compressed-tensors are not supported"},
    {".weight.compressed",        "sparse weights of compressed-tensors are not supported"},
    {".B_24",                     "Marlin's layout for sparse weights is not supported"},
    {".weight_shape_24",          "Marlin's layout for sparse weights is not supported"},
    {".scale_packed",             "marlin-24 of compressed-tensors, Marlin's layout for sparse weights, is not supported: decompress it with that library"},
    {".wscales",                  "Nunchaku's SVDQuant is not supported: the codes are in the order of a GPU's registers, and a product of two matrices is added; load it with Nunchaku"},
    {".tlut",                     "QTIP and HIGGS are not supported: their codes are indices of a table"},
    {".dense_weights",            "SpQR is not supported: its weights have outliers in a list of their own"},
};

struct VanishingEnding {
  std::string_view ending;
  Vanishing::Of of;
};
constexpr VanishingEnding kVanish[] = {
    {".input_scale",        Vanishing::kInputs},
    {"_input_scale",        Vanishing::kInputs},
    {".input_global_scale", Vanishing::kInputs},
    {"_input_global_scale", Vanishing::kInputs},
    {".activation_scale",   Vanishing::kInputs},
    {"_activation_scale",   Vanishing::kInputs},
    {".input_scale_ub",     Vanishing::kInputs},
    {".input_zero_point",   Vanishing::kInputs},
    {".scale_input",        Vanishing::kInputs},
    {".qscale_act",         Vanishing::kOutputs},  // Mistral; attention.kv_fake_quantizer has one too
    {".output_scale",       Vanishing::kOutputs},
    {".output_zero_point",  Vanishing::kOutputs},
    {".prob_output_scale",  Vanishing::kOutputs},
    {".k_scale",            Vanishing::kCache},
    {".v_scale",            Vanishing::kCache},
    {".q_scale",            Vanishing::kCache},
    {".kv_scale",           Vanishing::kCache},
    {".k_zero_point",       Vanishing::kCache},
    {".v_zero_point",       Vanishing::kCache},
    {".q_zero_point",       Vanishing::kCache},
    {".comfy_quant",        Vanishing::kMark},  // ComfyUI: a format's name, and the mark of a file
    {"scaled_fp8",          Vanishing::kMark},
};

constexpr Named kLeft[] = {
    {"_scale_inv",         "is a scale"},
    {".weight_scale",      "is a scale"},
    {".weight_scale_2",    "is a scale"},
    {"_proj_scale",        "is a scale"},
    {".weight_global_scale", "is a scale"},
    {".scale_weight",      "is a scale"},
    {".qscale_weight",     "is a scale"},
    {".weight_packed",     "holds packed weights"},
    {".weight_zero_point", "holds zero points"},
    {".weight_g_idx",      "holds the groups of columns"},
    {".g_idx",             "holds the groups of rows"},
    {".weight_chan_scale", "is a scale"},
    {".weight_zp",         "holds zero points"},
    {".qweight",           "holds packed weights"},
    {".qzeros",            "holds zero points"},
    {".SCB",               "is a scale"},
    {".absmax",            "holds scales"},
    {".weight_scb",        "is a scale"},
    {".pre_quant_scale",   "scales the columns"},
    {"_act_pre_scale",     "scales the columns"},
    {"._weight_scale",     "is a scale"},
    {"._weight_zero_point", "holds zero points"},
    {".weight_absmax",     "holds scales"},
    {".weight_quant_state", "tells the shape of packed weights"},
    {".nested_absmax",     "holds scales"},
    {".quant_map",         "holds values of codes"},
    {".quant_state.bitsandbytes__nf4", "tells the shape of packed weights"},
    {".quant_state.bitsandbytes__fp4", "tells the shape of packed weights"},
};
// The same beside weights that are quantised. A model may have parameters of these names.
constexpr Named kLeftOfQuantized[] = {
    {"_weight_scale",      "is a scale"},
    {"_weight_scale_2",    "is a scale"},
    {"_per_tensor_scale",  "is a scale"},
    {".weight_offset",     "holds zero points"},
};
// clang-format on

bool has_ending_of(std::string_view name, std::span<const Named> rows, std::string_view& reason) {
  for (const Named& row : rows) {
    if (!name.ends_with(row.ending)) continue;
    reason = row.reason;
    return true;
  }
  return false;
}

bool is_fp8(DType dtype) {
  return dtype == DType::kF8E4M3 || dtype == DType::kF8E5M2 || dtype == DType::kF8E4M3Fnuz ||
         dtype == DType::kF8E5M2Fnuz;
}

// A tensor whose dtype says all.
bool take_typed(std::uint32_t number, const Tensor& tensor, QuantizedWeight& found) {
  const Matrices all = matrices_of(tensor.shape);
  found.name = tensor.name;
  found.shape.assign(tensor.shape.begin(), tensor.shape.end());
  found.layout.rows = all.matrices * all.rows;
  found.layout.columns = all.columns;
  found.input(Role::kWeight) = number;
  const auto packing = packed(typed(tensor.dtype), found.layout.rows, found.layout.columns);
  if (!packing) Finder::refuse(tensor, "its size overflows");
  found.layout.weight = *packing;
  return true;
}

bool find_plain(const Finder&, std::uint32_t number, const Tensor& tensor, QuantizedWeight& found) {
  return is_fp8(tensor.dtype) && take_typed(number, tensor, found);
}

}  // namespace

bool find_gguf(const Finder&, std::uint32_t number, const Tensor& tensor, QuantizedWeight& found) {
  return type_info(tensor.dtype).kind == TypeKind::kQuantized && take_typed(number, tensor, found);
}

std::span<const Scheme> schemes() { return kSchemes; }
const Scheme& plain_scheme() { return kPlain; }

std::string reason_to_refuse(std::string_view name) {
  std::string_view reason;
  return has_ending_of(name, kRefused, reason) ? std::string(reason) : "";
}

bool may_hold_codes(DType dtype) {
  const bool is_plain = dtype == DType::kBF16 || dtype == DType::kF16 || dtype == DType::kF32 ||
                        dtype == DType::kF64 || dtype == DType::kI64 || dtype == DType::kBool;
  return !is_plain && type_info(dtype).kind != TypeKind::kQuantized;
}

std::optional<Vanishing> vanishing(std::string_view name) {
  for (const VanishingEnding& row : kVanish) {
    if (name.ends_with(row.ending)) return Vanishing{row.of, without_ending(name, row.ending)};
  }
  return std::nullopt;
}

bool may_vanish(const Vanishing& part, const Tensor& tensor, std::uint64_t matrices) {
  if (part.of == Vanishing::kMark) return true;
  // The zero point of FP8 is FP8.
  if (!tensor.name.ends_with("zero_point") && !scale_type(tensor.dtype)) return false;
  if (tensor.elements() == 1) return true;
  if (matrices != 0) return part.of == Vanishing::kCache || tensor.elements() == matrices;
  const auto is_long = [](std::uint64_t dim) { return dim != 1; };
  return part.of == Vanishing::kCache && tensor.shape.size() > 1 && tensor.shape.back() == 1 &&
         std::ranges::count_if(tensor.shape, is_long) == 1;
}

std::size_t place_of_companion(std::string_view name) {
  constexpr std::string_view kWords[] = {"scale", "zero",      "absmax", "g_idx", "hadamard",
                                         "rotat", "spinquant", "offset", "smooth"};
  constexpr std::string_view kEnds[] = {
      "_zp",         ".zp",    "_scb",   ".scb",     "weight_min", ".weight_shift", "perm",
      "permutation", "_order", ".order", "outliers", "_lut",       ".lut"};
  const std::string lower = lower_case(name);
  std::size_t place = std::string::npos;
  const auto add = [&](std::size_t at) {
    if (at != std::string::npos && (place == std::string::npos || at > place)) place = at;
  };
  for (const std::string_view word : kWords) add(lower.rfind(word));
  for (const std::string_view end : kEnds) {
    if (lower.ends_with(end)) add(lower.size() - end.size());
  }
  return place;
}

std::string_view base_of_part(std::string_view name) {
  constexpr std::string_view kWeights[] = {".weight", "_packed", ".qweight", "_blocks", ".blocks"};
  if (const std::size_t torchao = name.rfind("._weight_"); torchao != std::string_view::npos) {
    return name.substr(0, torchao);
  }
  std::size_t longest = 0;
  const auto cut = [&](std::string_view ending) {
    if (name.ends_with(ending)) longest = std::max(longest, ending.size());
  };
  std::ranges::for_each(kEndings, cut);
  std::ranges::for_each(kWeights, cut);
  name.remove_suffix(longest);
  // X.weight_scale is X.weight and _scale, but X.scales is X and .scales.
  return name.ends_with(".weight") ? without_ending(name, ".weight") : name;
}

std::string reason_if_left(const Finder& finder, const Tensor& tensor, bool is_quantized) {
  std::string_view part;
  if (has_ending_of(tensor.name, kLeft, part) ||
      (is_quantized && has_ending_of(tensor.name, kLeftOfQuantized, part))) {
    return std::string(part) + " of a quantised weight that is not there, or not quantised";
  }
  const bool is_of_gpt_oss = tensor.dtype == DType::kU8 && tensor.name.ends_with("_scales");
  const bool is_of_mlx = tensor.name.ends_with(".scales") &&
                         ((is_quantized && tensor.shape.size() > 1) ||
                          finder.find(without_ending(tensor.name, ".scales"), ".biases"));
  if (is_of_gpt_oss || is_of_mlx) return "holds scales of a quantised weight that is not there";
  if (is_fp8(tensor.dtype)) return "is FP8, and has no scale, while other weights have one";
  if (tensor.dtype == DType::kF8E8M0) return "holds scales of a weight that is not there";
  return "";
}

// --- Finder

namespace {

// Pairs of a step and a place that expressions may visit: seconds for any checkpoint.
constexpr std::uint64_t kMostMatching = std::uint64_t{1} << 26;
constexpr std::uint64_t kMatchingOfTensor = std::uint64_t{1} << 12;

}  // namespace

Finder::Finder(const TensorList& list, Sources& sources)
    : list_(list),
      sources_(sources),
      work_{.most = kMostMatching + kMatchingOfTensor * list.size()} {
  for (std::uint32_t i = 0; i < list.size(); ++i) {
    const std::string_view name = list.name(i);
    for (std::size_t k = 0; k < std::size(kEndings); ++k) {
      if (name.ends_with(kEndings[k])) endings_ |= std::uint64_t{1} << k;
    }
  }
}

bool Finder::has_ending(std::string_view ending) const {
  const auto known = std::ranges::find(kEndings, ending);
  const auto bit = static_cast<unsigned>(known - std::begin(kEndings));
  return known != std::end(kEndings) && (endings_ >> bit & 1) != 0;
}

std::optional<std::uint32_t> Finder::find(std::string_view base, std::string_view ending) const {
  if (!has_ending(ending)) return std::nullopt;
  std::string name(base);
  name += ending;
  return list_.find(name);
}

const QuantizationConfig& Finder::config(std::uint32_t number) const {
  const std::string& directory = list_.part_of(number).directory;
  const auto known = configs_.find(directory);
  if (known != configs_.end()) return known->second;
  return configs_.emplace(directory, read_quantization_config(directory, sources_)).first->second;
}

std::optional<std::string_view> Finder::metadata(std::uint32_t number, std::string_view key) const {
  const auto text_in = [&](const Part& part) -> std::optional<std::string_view> {
    const auto at = part.header.metadata.find(key);
    return at ? std::optional(part.header.metadata[*at].second) : std::nullopt;
  };
  if (const auto text = text_in(list_.part_of(number))) return text;
  for (const Part& part : list_.parts()) {
    if (const auto text = text_in(part)) return text;
  }
  return std::nullopt;
}

bool Finder::has_layers_of_comfy(std::uint32_t number) const {
  return has_ending(".comfy_quant") ||
         list_.part_of(number).header.metadata.find(kComfyKey).has_value();
}

std::optional<ComfyLayer> Finder::layer_of_comfy(std::uint32_t number,
                                                 std::string_view layer) const {
  if (const auto mark = find(layer, ".comfy_quant")) return comfy_layer(bytes_of(tensor(*mark)));
  const Part& part = list_.part_of(number);
  const auto at = part.header.metadata.find(kComfyKey);
  if (!at) return std::nullopt;
  auto known = comfy_layers_.find(&part);
  if (known == comfy_layers_.end()) {
    auto layers = comfy_layers(part.header.metadata[*at].second);
    known = comfy_layers_.emplace(&part, std::move(layers).value_or(ComfyLayers{})).first;
  }
  const auto about = known->second.find(layer);
  return about == known->second.end() ? std::nullopt : std::optional(about->second);
}

const QuantizationConfig* Finder::first_with(bool (*is_wanted)(const QuantizationConfig&)) const {
  for (std::uint32_t i = 0; i < list_.size(); ++i) {
    if (!may_hold_codes(list_.tensor(i).dtype)) continue;
    if (is_wanted(config(i))) return &config(i);
  }
  return nullptr;
}

void Finder::refuse_unknown_methods() const {
  const auto is_unknown = [](const QuantizationConfig& config) {
    constexpr std::string_view kKnown[] = {"",
                                           "fp8",
                                           "fbgemm_fp8",
                                           "compressed-tensors",
                                           "modelopt",
                                           "gptq",
                                           "awq",
                                           "auto-round",
                                           "intel/auto-round",
                                           "bitsandbytes",
                                           "mlx",
                                           "mxfp4",
                                           "mxfp8",
                                           "metal",
                                           "quark",
                                           "torchao"};
    return std::ranges::find(kKnown, config.method) == std::end(kKnown) &&
           !config.method.starts_with("modelopt");
  };
  if (const QuantizationConfig* const config = first_with(is_unknown)) {
    throw Error(ErrorCode::kQuantized, config->file,
                "quant_method " + in_quotes(config->method) +
                    " is not supported: convert the checkpoint with the library that made it");
  }
}

void Finder::refuse_any_method() const {
  const auto has_method = [](const QuantizationConfig& config) { return !config.method.empty(); };
  if (const QuantizationConfig* const config = first_with(has_method)) {
    throw Error(ErrorCode::kQuantized, config->file,
                "quant_method " + in_quotes(config->method) +
                    (config->format.empty() ? "" : " (" + in_quotes(config->format) + ")") +
                    ": no tensor is stored in a way of this method that is known");
  }
}

// Keys of MLX's quantisation that look like modules, and are the beginning of no tensor's name.
// Names with dots count only where all of them are such: others are of modules in files elsewhere.
std::set<std::string> Finder::modules_without_tensors(const QuantizationConfig& config) const {
  constexpr std::size_t kLongest = 512;  // bytes of a module's name
  const auto has_dot = [](const std::string& name) { return name.find('.') != std::string::npos; };
  std::set<std::string> left;
  for (const auto& [name, module] : config.modules) {
    if (!module.is_known_key) left.insert(name);
  }
  const auto dotted = std::ranges::count_if(left, has_dot);
  for (std::uint32_t i = 0; i < list_.size() && !left.empty(); ++i) {
    const std::string_view name = list_.name(i).substr(0, kLongest);
    for (std::size_t dot = name.find('.'); dot != std::string_view::npos;
         dot = name.find('.', dot + 1)) {
      left.erase(std::string(name.substr(0, dot)));
      if (!config.is_of_text) continue;
      for (const std::string_view part : kTextModels) {
        const std::size_t at = name.find(part);
        if (at != std::string_view::npos && at + part.size() < dot) {
          left.erase(std::string(name.substr(at + part.size(), dot - at - part.size())));
        }
      }
    }
  }
  if (std::ranges::count_if(left, has_dot) < dotted) std::erase_if(left, has_dot);
  return left;
}

void Finder::note_unknown(const Part& part, const std::set<std::string>& keys) const {
  if (!keys.empty()) unknown_[part.source->path()].insert(keys.begin(), keys.end());
}

std::vector<std::string> Finder::warnings() const {
  constexpr std::size_t kMost = 8;  // keys in a line
  std::vector<std::string> lines;
  const auto add = [&](const std::string& file, const std::set<std::string>& unknown) {
    if (unknown.empty()) return;
    std::string keys;
    std::size_t i = 0;
    for (auto key = unknown.begin(); key != unknown.end() && i < kMost; ++key, ++i) {
      keys += (i == 0 ? "" : ", ") + in_quotes(*key);
    }
    if (unknown.size() > kMost) {
      keys += " and " + std::to_string(unknown.size() - kMost) + " more";
    }
    lines.push_back(printable(file) + ": quantisation: " + keys +
                    " is not known: the values may be others; compare some with those of the "
                    "library that made the checkpoint");
  };
  for (const auto& [directory, config] : configs_) {
    std::set<std::string> unknown = config.unknown;
    unknown.merge(modules_without_tensors(config));
    add(config.file, unknown);
  }
  for (const auto& [file, unknown] : unknown_) add(file, unknown);
  return lines;
}

std::string Finder::config_texts() const {
  // In the order of the sources: a directory may be named in several ways.
  std::vector<std::string_view> texts;
  for (const Part& part : list_.parts()) {
    const auto known = configs_.find(part.directory);
    if (known == configs_.end()) continue;
    if (std::ranges::find(texts, known->second.text) == texts.end()) {
      texts.push_back(known->second.text);
    }
  }
  std::string all;
  for (const std::string_view text : texts) all.append(text).push_back('\0');
  return all;
}

std::optional<std::uint32_t> Finder::first_word(const Tensor& tensor) const {
  std::uint32_t word = 0;
  if (!tensor.locator || tensor.length < sizeof word) return std::nullopt;
  const Source& source = *tensor.locator->source;
  if (!source.has({tensor.locator->offset, sizeof word})) return std::nullopt;
  const std::span out = std::as_writable_bytes(std::span(&word, 1));
  const int error = source.read(out, tensor.locator->offset);
  if (error != 0) {
    throw_read_failure(source, source.path(), "tensor " + in_quotes(tensor.name), error);
  }
  return word;
}

std::string Finder::bytes_of(const Tensor& tensor) const {
  constexpr std::uint64_t kMost = 64 << 10;
  if (!tensor.locator || tensor.length > kMost) refuse(tensor, "too large for what its name says");
  std::string bytes(static_cast<std::size_t>(tensor.length), '\0');
  const Source& source = *tensor.locator->source;
  const std::span out = std::as_writable_bytes(std::span(bytes));
  const int error = sources_.read(source, tensor.locator->offset, out);
  if (error != 0) {
    throw_read_failure(source, source.path(), "tensor " + in_quotes(tensor.name), error);
  }
  return bytes;
}

void Finder::refuse(const Tensor& tensor, const std::string& rule) {
  throw Error(ErrorCode::kQuantized, tensor.locator ? tensor.locator->source->path() : "",
              "tensor " + in_quotes(tensor.name) + ": " + rule);
}

// --- for rows

Matrices matrices_of(std::span<const std::uint64_t> shape) {
  Matrices out;
  if (!shape.empty()) out.columns = shape.back();
  if (shape.size() > 1) out.rows = shape[shape.size() - 2];
  for (std::size_t i = 0; i + 2 < shape.size(); ++i) out.matrices *= shape[i];
  return out;
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

Packing typed(DType type) { return {.codes = Codes::kTyped, .type = type}; }

Packing fields(Codes codes, std::uint64_t bits, std::int32_t offset) {
  return {.codes = codes, .bits = static_cast<std::uint8_t>(bits), .offset = offset};
}

std::optional<DType> scale_type(DType dtype) {
  constexpr DType kScales[] = {DType::kF32, DType::kBF16, DType::kF16, DType::kF8E8M0};
  if (dtype == DType::kU8) return DType::kF8E8M0;
  return std::ranges::find(kScales, dtype) != std::end(kScales) ? std::optional(dtype)
                                                                : std::nullopt;
}

void refuse_companion(const Tensor& weight, const Tensor& companion) {
  refuse_companion(weight, companion, "");
}

void refuse_companion(const Tensor& weight, const Tensor& companion, const std::string& rule) {
  const std::string about = in_quotes(companion.name) + " is " +
                            std::string(dtype_name(companion.dtype)) + " " +
                            shape_json(companion.shape);
  Finder::refuse(weight, std::string(dtype_name(weight.dtype)) + " " + shape_json(weight.shape) +
                             ", but " + about +
                             (rule.empty() ? ", which does not fit" : ": " + rule));
}

std::string_view without_ending(std::string_view name, std::string_view ending) {
  return name.substr(0, name.size() - ending.size());
}

void refuse_without_zero_points(const Finder& finder, std::uint32_t number, const Tensor& weight,
                                std::string_view base) {
  const QuantizationConfig& config = finder.config(number);
  const bool needs_any =
      std::ranges::any_of(config.groups, [](const auto& group) { return group.is_asymmetric; });
  if (!needs_any || finder.has_ending("_zero_point")) return;
  const GroupsOfModule own = groups_of(config, without_ending(base, ".weight"), finder.work());
  const auto groups = own.is_told ? own.groups : all_groups(config);
  const bool has_zeros = std::ranges::all_of(
      groups, [](const auto* group) { return group->is_asymmetric && group->type != "float"; });
  if (has_zeros) refuse_half(weight, base, "_zero_point");
}

void refuse_half(const Tensor& weight, std::string_view base, std::string_view ending) {
  Finder::refuse(weight, "has no " + in_quotes(std::string(base) + std::string(ending)) +
                             " beside it: the checkpoint is not complete");
}

void refuse_conv1d(const Finder& finder, std::uint32_t number, const Tensor& weight,
                   std::string_view module) {
  const QuantizationConfig& config = finder.config(number);
  const std::string_view layer = module.substr(module.rfind('.') + 1);
  if (config.model_of_conv1d.empty() || !(layer.starts_with("c_") || layer == "q_attn")) return;
  Finder::refuse(weight, "a Conv1D of a model of type " + in_quotes(config.model_of_conv1d) +
                             ": its weight may be stored transposed; convert the checkpoint with "
                             "the library that made it");
}

std::uint32_t need(const Finder& finder, const Tensor& weight, std::string_view base,
                   std::string_view ending) {
  const auto number = finder.find(base, ending);
  if (!number) refuse_half(weight, base, ending);
  return *number;
}

void refuse_without_config(const Finder& finder, std::uint32_t number, const Tensor& weight,
                           const std::string& subject) {
  const QuantizationConfig& config = finder.config(number);
  Finder::refuse(weight,
                 "its tensors do not tell " + subject + ", and " + printable(config.file) +
                     (config.unreadable.empty() ? " does not either" : ": " + config.unreadable));
}

void refuse_of_modelopt_for_comfy(const Finder& finder, std::uint32_t number,
                                  const Tensor& weight) {
  if (!finder.metadata(number, "quantization_config")) return;
  Finder::refuse(weight,
                 "NVFP4 in a file that ModelOpt wrote for ComfyUI: nothing tells the order of its "
                 "scales; export it without the options for ComfyUI");
}

void add_column_scale(const Finder& finder, const Tensor& weight, std::string_view base,
                      std::string_view ending, QuantizedWeight& found) {
  const auto number = finder.find(base, ending);
  if (!number) return;
  const Tensor scale = finder.tensor(*number);
  const auto type = scale_type(scale.dtype);
  if (!type || *type == DType::kF8E8M0 || !has_rank(weight, 2) || found.layout.is_transposed ||
      !has_rank(scale, 1) || scale.shape[0] != found.layout.columns) {
    refuse_companion(weight, scale, "a scale for each column is expected");
  }
  found.layout.column_scale = packed_or_refuse(weight, typed(*type), 1, found.layout.columns);
  found.layout.column_scale.matrix = 0;
  found.input(Role::kColumnScale) = *number;
}

// Packs, or refuses a size that overflows.
Packing packed_or_refuse(const Tensor& weight, const Packing& packing, std::uint64_t rows,
                         std::uint64_t columns, std::uint64_t unit) {
  const auto whole = packed(packing, rows, columns, unit);
  if (!whole) Finder::refuse(weight, "its size overflows");
  return *whole;
}

std::vector<std::uint64_t> with_last(std::span<const std::uint64_t> shape, std::uint64_t last) {
  std::vector<std::uint64_t> out(shape.begin(), shape.end());
  out.back() = last;
  return out;
}

bool has_rank(const Tensor& tensor, std::size_t rank) { return tensor.shape.size() == rank; }

}  // namespace stfs
