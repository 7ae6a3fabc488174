#include "core/layer/quantised/finder.h"

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/layer/quantised/schemes.h"
#include "core/recipe/fetch_missing.h"

#include <algorithm>
#include <iterator>

namespace stfs {
namespace {

// The endings of names that rows search for.
// clang-format off
constexpr std::string_view kEndings[] = {
    ".scale", "_scale", "_scale_inv", "_scale_2", "_weight_scale", "_weight_scale_2",
    ".scale_weight", ".qscale_weight",                              // ComfyUI, Mistral
    "_zero_point", "_g_idx", "_shape", "_global_scale",             // compressed-tensors
    "_weight_global_scale",                                         // transformers
    ".scales", ".biases", ".qbiases",                               // MLX
    ".absmax", ".nested_absmax", ".nested_quant_map", ".quant_map", ".SCB", ".weight_format",
    ".quant_state.bitsandbytes__nf4", ".quant_state.bitsandbytes__fp4",
    "_scales",                                                      // gpt-oss
    ".qzeros", ".g_idx",                                            // GPTQ, AWQ
    "_chan_scale",                                                  // compressed-tensors, W4A8
    ".comfy_quant", "_zeros",                                       // ComfyUI
    ".pre_quant_scale",                                             // ModelOpt
    "_qdata", "_per_tensor_scale", "_act_pre_scale",                // torchao
    "_act_quant_scale", "_act_quant_zero_point", "_act_per_tensor_scale",
    "_scb",                                                         // GPTQModel's bitsandbytes
    ".input_scale",                                                 // GGUF
    "_absmax", "_quant_map", "_nested_absmax", "_nested_quant_map", "_quant_state",
};
static_assert(std::size(kEndings) <= 64, "a bit each");
// clang-format on

// Returns the source of a stored tensor, or of the first input of a computed tensor.
const Source& source_of(const Tensor& tensor) {
  return *(tensor.locator ? tensor : tensor.computed->inputs().front()).locator->source;
}

[[noreturn]] void throw_unread(const Tensor& tensor, int error) {
  const Source& source = source_of(tensor);
  throw_read_failure(source, source.path(), "tensor " + in_quotes(tensor.name), error);
}

int fetched(const Content& content, std::span<std::byte> out) {
  const int error = fetch_and_copy(content, 0, out);
  return error != 0 ? error : content.verify();
}

}  // namespace

std::span<const std::string_view> known_endings() { return kEndings; }

Finder::Finder(const TensorList& list, Sources& sources)
    : list_(list), sources_(sources), work_(MatchingWork::for_tensors(list.size())) {
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
                                           "nvfp4",
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
  const auto has_format = [](const QuantizationConfig& config) {
    return !config.unknown_format().empty();
  };
  if (const QuantizationConfig* const config = first_with(has_format)) {
    throw Error(ErrorCode::kQuantized, config->file,
                "format " + in_quotes(config->unknown_format()) +
                    " of compressed-tensors is not supported: decompress the checkpoint with that "
                    "library");
  }
}

void Finder::refuse_any_method() const {
  const auto has_method = [](const QuantizationConfig& config) { return !config.method.empty(); };
  if (const QuantizationConfig* const config = first_with(has_method)) {
    throw Error(ErrorCode::kQuantized, config->file,
                "quant_method " + in_quotes(config->method) +
                    (config->format.empty() ? "" : " (" + in_quotes(config->format) + ")") +
                    ": no tensor is stored in a known way of this method");
  }
}

// Returns keys of MLX's quantisation that look like modules but do not occur at the beginning of
// any tensor's name. Keys with dots are returned only if none of them occurs, because otherwise the
// other modules may be in files that were not loaded.
std::set<std::string> Finder::modules_without_tensors(const QuantizationConfig& config) const {
  constexpr std::size_t kLongest = 512;  // the maximum length of a module's name, in bytes
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
  constexpr std::size_t kMost = 8;  // the maximum number of keys per line
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
    lines.push_back(printable(file) + ": quantisation: unknown key" +
                    (unknown.size() == 1 ? " " : "s ") + keys +
                    ": the values may be wrong; compare some of them with the library that made "
                    "the checkpoint");
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
  // In the order of the sources, because a directory may have several names.
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

void Finder::read(const Tensor& tensor, std::span<std::byte> out) const {
  const int error = tensor.locator
                        ? sources_.read(*tensor.locator->source, tensor.locator->offset, out)
                        : fetched(tensor.content(), out);
  if (error != 0) throw_unread(tensor, error);
}

std::optional<std::uint32_t> Finder::first_word(const Tensor& tensor) const {
  std::uint32_t word = 0;
  if (tensor.length < sizeof word) return std::nullopt;
  read(tensor, std::as_writable_bytes(std::span(&word, 1)));
  return word;
}

std::string Finder::bytes_of(const Tensor& tensor) const {
  constexpr std::uint64_t kMost = 64 << 10;
  if (tensor.length > kMost) refuse(tensor, "too large for a tensor of this name");
  std::string bytes(static_cast<std::size_t>(tensor.length), '\0');
  read(tensor, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

void Finder::refuse(const Tensor& tensor, const std::string& rule) {
  throw Error(ErrorCode::kQuantized, source_of(tensor).path(),
              "tensor " + in_quotes(tensor.name) + ": " + rule);
}

}  // namespace stfs
