#include "core/layer/quantised/schemes.h"

#include "core/base/text.h"
#include "core/format/gguf.h"

#include <algorithm>
#include <cstddef>
#include <iterator>

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

bool find_plain(Candidate& weight);
constexpr Scheme kPlain{"FP8 without scales", find_plain};

struct Named {
  std::string_view ending;
  std::string_view reason;
};

// Weights that depend on more than the stored numbers, or that have an unknown layout.
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
    {".Qidxs",                    "QuIP# is not supported: its codes are indices of a codebook"},
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
  AuxiliaryTensor::Of of;
};
constexpr VanishingEnding kVanish[] = {
    {".input_scale",        AuxiliaryTensor::kInputs},
    {"_input_scale",        AuxiliaryTensor::kInputs},
    {".input_global_scale", AuxiliaryTensor::kInputs},
    {"_input_global_scale", AuxiliaryTensor::kInputs},
    {".activation_scale",   AuxiliaryTensor::kInputs},
    {"_activation_scale",   AuxiliaryTensor::kInputs},
    {".input_scale_ub",     AuxiliaryTensor::kInputs},
    {".input_zero_point",   AuxiliaryTensor::kInputs},
    {".scale_input",        AuxiliaryTensor::kInputs},
    {".act_scale",          AuxiliaryTensor::kInputs},   // AutoFP8
    {".input_quantizer._amax",  AuxiliaryTensor::kInputs},   // ModelOpt
    {".output_quantizer._amax", AuxiliaryTensor::kOutputs},
    {".qscale_act",         AuxiliaryTensor::kOutputs},  // Mistral; also in attention.kv_fake_quantizer
    {".output_scale",       AuxiliaryTensor::kOutputs},
    {".output_zero_point",  AuxiliaryTensor::kOutputs},
    {".prob_output_scale",  AuxiliaryTensor::kOutputs},
    {".k_scale",            AuxiliaryTensor::kCache},
    {".v_scale",            AuxiliaryTensor::kCache},
    {".q_scale",            AuxiliaryTensor::kCache},
    {".kv_scale",           AuxiliaryTensor::kCache},
    {".k_zero_point",       AuxiliaryTensor::kCache},
    {".v_zero_point",       AuxiliaryTensor::kCache},
    {".q_zero_point",       AuxiliaryTensor::kCache},
    {".comfy_quant",        AuxiliaryTensor::kMark},  // ComfyUI: the name of a format, the mark of a file
    {"scaled_fp8",          AuxiliaryTensor::kMark},
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
    {".weight_quant_state", "gives the shape of packed weights"},
    {".nested_absmax",     "holds scales"},
    {".quant_map",         "holds values of codes"},
    {".quant_state.bitsandbytes__nf4", "gives the shape of packed weights"},
    {".quant_state.bitsandbytes__fp4", "gives the shape of packed weights"},
};
// Endings of parts of quantised weights that count only if other weights are quantised. A model
// without quantised weights may have ordinary parameters with these names.
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

// Takes a tensor with values that depend only on its type and its bytes.
bool take_typed(Candidate& weight) {
  const Matrices all = matrices_of(weight.tensor.shape);
  weight.set_codes(typed(weight.tensor.dtype),
                   {.rows = all.matrices * all.rows, .columns = all.columns});
  weight.set_result(weight.tensor.name, weight.tensor.shape);
  return true;
}

bool find_plain(Candidate& weight) { return is_fp8(weight.tensor.dtype) && take_typed(weight); }

}  // namespace

bool lacks_part_of_gguf(const TensorList& list) {
  return std::ranges::any_of(list.missing(), [](const MissingTensor& each) { return !each.name; });
}

bool is_scaled_in_gguf(DType dtype) {
  return dtype == DType::kNVFP4 || dtype == DType::kTQ1_0 || dtype == DType::kTQ2_0;
}

namespace {

// Returns true for a parameter of Gemma 4 that only has the name of a scale of the weight beside
// it.
bool is_of_gemma4(const Candidate& weight, const Tensor& scale) {
  const auto model = weight.finder.metadata(weight.number, "general.architecture");
  return model && model->starts_with("gemma4") &&
         (scale.name.ends_with("ffn_down_exps.scale") ||
          scale.name.ends_with("ffn_gate_inp.scale"));
}

}  // namespace

bool find_gguf(Candidate& weight) {
  const Tensor& tensor = weight.tensor;
  const bool has_blocks = type_info(tensor.dtype).kind == TypeKind::kQuantized;
  const bool is_matrix_of_gguf =
      weight.finder.list().part_of(weight.number).format->name == kGgufName && tensor.locator &&
      tensor.shape.size() > 1 && !may_hold_codes(tensor.dtype);
  if (!has_blocks && !is_matrix_of_gguf) return false;
  if (has_blocks) take_typed(weight);
  // llama.cpp and other programs write X.scale or X.weight.scale.
  auto scale = weight.find(weight.module(), ".scale");
  if (const auto other = weight.find(tensor.name, ".scale")) {
    if (scale && scale->number != other->number) weight.refuse(*other, "it has two scales");
    scale = other;
  }
  if (!is_scaled_in_gguf(tensor.dtype)) {
    if (scale && !is_of_gemma4(weight, *scale)) {
      weight.refuse(
          *scale,
          "only NVFP4, TQ1_0 and TQ2_0 have such a scale; its meaning for this type is unknown");
    }
    return has_blocks;
  }
  if (!scale && lacks_part_of_gguf(weight.finder.list())) {
    weight.refuse("its scale may be in a file that is missing");
  }
  // A scale of the inputs. Only the code that runs the model uses it.
  const auto input = weight.find(tensor.name, ".input_scale");
  if (input && tensor.name != weight.module()) weight.found.others.push_back(input->number);
  if (!scale) return true;
  const Matrices all = matrices_of(tensor.shape);
  const bool is_of_experts = has_rank(tensor, 3) && has_rank(*scale, 1) && scale->shape[0] != 1;
  if (scale->dtype != DType::kF32 || scale->elements() != (is_of_experts ? all.matrices : 1)) {
    weight.refuse(*scale, "expected one F32 for all, or one for each expert");
  }
  if (is_of_experts) weight.set_codes(typed(tensor.dtype), all);
  weight.set_grid(1, 1, weight.found.layout.rows, weight.found.layout.columns);
  weight.take_on_grid(Role::kScale, *scale, typed(DType::kF32));
  return true;
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

std::optional<AuxiliaryTensor> find_auxiliary(std::string_view name) {
  for (const VanishingEnding& row : kVanish) {
    if (name.ends_with(row.ending))
      return AuxiliaryTensor{row.of, without_ending(name, row.ending)};
  }
  return std::nullopt;
}

bool is_auxiliary(const AuxiliaryTensor& part, const Tensor& tensor, std::uint64_t matrices) {
  if (part.of == AuxiliaryTensor::kMark) return true;
  // The zero point of FP8 has the type FP8, so its type is not checked.
  if (!tensor.name.ends_with("zero_point") && !scale_type(tensor.dtype)) return false;
  if (tensor.elements() == 1) return true;
  if (matrices != 0) return part.of == AuxiliaryTensor::kCache || tensor.elements() == matrices;
  const auto is_long = [](std::uint64_t dim) { return dim != 1; };
  return part.of == AuxiliaryTensor::kCache && tensor.shape.size() > 1 &&
         tensor.shape.back() == 1 && std::ranges::count_if(tensor.shape, is_long) == 1;
}

namespace {

// Returns the last position of any of these words in a lower-case name, or npos if it contains
// none.
std::size_t last_of(std::string_view name, std::span<const std::string_view> words) {
  std::size_t place = std::string_view::npos;
  for (const std::string_view word : words) {
    const std::size_t at = name.rfind(word);
    if (at != std::string_view::npos && (place == std::string_view::npos || at > place)) place = at;
  }
  return place;
}

// Words for scales, and for tensors that are added to or replace codes times scales.
constexpr std::string_view kParts[] = {
    "scal",           "amax",     "svd_",     "lora_",   "proj_up",
    "proj_down",      "low_rank", "codebook", "outlier", "weight_correction",
    "weight_residual"};

}  // namespace

std::size_t companion_word_position(std::string_view name) {
  constexpr std::string_view kWords[] = {"zero",  "absmax",    "g_idx",  "hadamard",
                                         "rotat", "spinquant", "offset", "smooth"};
  constexpr std::string_view kEnds[] = {"_zp",        ".zp",           "_scb", ".scb",
                                        "weight_min", ".weight_shift", "perm", "permutation",
                                        "_order",     ".order",        "_lut", ".lut"};
  const std::string lower = lower_case(name);
  std::size_t place = last_of(lower, kParts);
  const auto add = [&](std::size_t at) {
    if (at != std::string::npos && (place == std::string::npos || at > place)) place = at;
  };
  add(last_of(lower, kWords));
  for (const std::string_view end : kEnds) {
    if (lower.ends_with(end)) add(lower.size() - end.size());
  }
  return place;
}

std::size_t place_of_unknown_part(std::string_view name) {
  // Parameters of unquantised models that only sound like a scale.
  constexpr std::string_view kOfModels[] = {"logit_scale", "layer_scale", "layerscale",
                                            "scale_shift", "norm.scale",  "norm/scale"};
  const std::string lower = lower_case(name);
  const auto gone = find_auxiliary(name);
  const bool is_known = gone && gone->of != AuxiliaryTensor::kCache;
  return is_known || last_of(lower, kOfModels) != std::string::npos ? std::string::npos
                                                                    : last_of(lower, kParts);
}

bool is_scale_of_model(std::string_view name) {
  constexpr std::string_view kWords[] = {"scale_factor",   "scaling_factor",   "embed_scale",
                                         "timestep_scale", "scale_multiplier", "per_dim_scale"};
  const std::string lower = "." + lower_case(name);
  if (lower.find("weight") != std::string::npos) return false;
  // "norms.0.scale", "final_norm_scale", "block.ln1.scale"
  std::string_view norm = lower;
  const auto cut = [&](std::string_view characters) {
    norm = norm.substr(0, norm.find_last_not_of(characters) + 1);
  };
  if (norm.ends_with("scale")) norm.remove_suffix(5);
  cut("._/0123456789");
  const auto ends = [&](std::string_view end) { return norm.ends_with(end); };
  constexpr std::string_view kNorms[] = {"norm", "norms", ".ln", "_ln", "layernorm"};
  return last_of(lower, kWords) != std::string::npos ||
         (norm.size() < lower.size() && std::ranges::any_of(kNorms, ends));
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
  std::ranges::for_each(known_endings(), cut);
  std::ranges::for_each(kWeights, cut);
  name.remove_suffix(longest);
  // X.weight_scale consists of X.weight and _scale, but X.scales of X and .scales.
  return name.ends_with(".weight") ? without_ending(name, ".weight") : name;
}

std::string reason_if_unclaimed(const Finder& finder, const Tensor& tensor, bool is_quantized) {
  std::string_view part;
  if (has_ending_of(tensor.name, kLeft, part) ||
      (is_quantized && has_ending_of(tensor.name, kLeftOfQuantized, part))) {
    return std::string(part) + " of a quantised weight that is missing or not quantised";
  }
  const bool is_of_gpt_oss = tensor.dtype == DType::kU8 && tensor.name.ends_with("_scales");
  const bool is_of_mlx = tensor.name.ends_with(".scales") &&
                         ((is_quantized && tensor.shape.size() > 1) ||
                          finder.find(without_ending(tensor.name, ".scales"), ".biases"));
  if (is_of_gpt_oss || is_of_mlx) return "holds scales of a quantised weight that is missing";
  if (is_fp8(tensor.dtype)) return "is FP8 without a scale, although other weights have one";
  if (tensor.dtype == DType::kF8E8M0) return "holds scales of a weight that is missing";
  return "";
}

}  // namespace stfs
