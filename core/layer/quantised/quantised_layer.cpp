#include "core/layer/quantised/quantised_layer.h"

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/format/gguf.h"
#include "core/layer/quantised/dequantize.h"
#include "core/layer/quantised/schemes.h"
#include "core/remote/http/url.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <deque>
#include <iterator>
#include <map>
#include <memory>
#include <set>
#include <unordered_set>
#include <utility>

namespace stfs {
namespace {

constexpr std::array<std::pair<std::string_view, DType>, 3> kTypeWords{
    {{"bf16", DType::kBF16}, {"f16", DType::kF16}, {"f32", DType::kF32}}};

// A tensor of the list below: a record in a part's header, or a computed tensor.
struct Input {
  Role role;
  const Part* part;
  std::uint32_t record;
  const ComputedTensor* computed;  // null: the tensor is stored

  Tensor tensor() const { return computed != nullptr ? computed->tensor() : part->tensor(record); }
};

class QuantizedTensors;

// A weight with computed values. Keep it small, because a list may contain a hundred thousand.
class QuantizedTensor : public ComputedTensor {
 public:
  QuantizedTensor(const QuantizedTensors& all, std::uint32_t number, const Scheme& scheme,
                  const QuantizedLayout& layout, QuantizedWeight&& found, std::vector<Input> inputs,
                  std::uint64_t length)
      : all_(all),
        number_(number),
        scheme_(scheme),
        layout_(layout),
        name_(std::move(found.name)),
        shape_(std::move(found.shape)),
        inputs_(std::move(inputs)),
        length_(length) {}

  Tensor tensor() const override;
  Content content() const override;
  std::vector<Tensor> inputs() const override {
    std::vector<Tensor> inputs;
    for (const Input& input : inputs_) {
      const Tensor tensor = input.tensor();
      if (tensor.computed == nullptr) {
        inputs.push_back(tensor);
      } else {
        std::ranges::move(tensor.computed->inputs(), std::back_inserter(inputs));
      }
    }
    return inputs;
  }
  std::string_view scheme() const override { return scheme_.name; }
  bool is_dequantized() const override { return true; }

 private:
  const QuantizedTensors& all_;
  std::uint32_t number_;
  const Scheme& scheme_;
  const QuantizedLayout& layout_;
  std::string name_;
  std::vector<std::uint64_t> shape_;
  std::vector<Input> inputs_;  // in the order of their roles
  std::uint64_t length_;       // bytes
};

// The computed tensors of a list, the layouts that experts share, and the tiles of transposed
// results.
class QuantizedTensors : public ComputedTensors {
 public:
  explicit QuantizedTensors(DType dtype) : type(dtype) {}

  const DType type;
  mutable TileCache tiles;

  std::uint32_t add(QuantizedWeight found, const Scheme& scheme, std::vector<Input> inputs,
                    std::uint64_t length) {
    const auto number = static_cast<std::uint32_t>(tensors_.size());
    const QuantizedLayout& layout = kept(found.layout);
    tensors_.emplace_back(*this, number, scheme, layout, std::move(found), std::move(inputs),
                          length);
    return number;
  }

  bool is_empty() const { return tensors_.empty(); }
  const ComputedTensor& tensor(std::uint32_t i) const { return tensors_[i]; }

 private:
  // Returns a stored copy of the layout. The experts of a layer have equal layouts, so the last few
  // layouts are compared first.
  const QuantizedLayout& kept(const QuantizedLayout& layout) {
    constexpr std::ptrdiff_t kLast = 16;
    const auto last = layouts_.end() - std::min(std::ssize(layouts_), kLast);
    const auto known = std::find(last, layouts_.end(), layout);
    if (known != layouts_.end()) return *known;
    return layouts_.emplace_back(layout);
  }

  std::deque<QuantizedTensor> tensors_;
  std::deque<QuantizedLayout> layouts_;
};

Tensor QuantizedTensor::tensor() const {
  return {.name = name_,
          .path = {},
          .dtype = all_.type,
          .shape = shape_,
          .length = length_,
          .locator = std::nullopt,
          .computed = this};
}

Content QuantizedTensor::content() const {
  QuantizedInputs inputs;
  for (const Input& input : inputs_) {
    inputs[static_cast<std::size_t>(input.role)] = QuantizedInput(input.tensor().content());
  }
  Content content;
  content.production(dequantized(layout_, std::move(inputs), all_.type, all_.tiles, number_));
  return content;
}

// Returns the inputs of a weight that a scheme has found. Refuses inputs that do not fit.
std::vector<Input> inputs_of(const TensorList& list, Candidate& weight) {
  std::vector<Input> inputs;
  InputLengths lengths;
  QuantizedWeight& found = weight.found;
  for (std::size_t i = 0; i < kRoles; ++i) {
    const std::uint32_t input = found.inputs[i];
    if (input == QuantizedWeight::kNone) continue;
    const TensorList::Row& row = list.row(input);
    inputs.push_back({static_cast<Role>(i), &list.part_of(input), row.record, row.computed});
    lengths[i] = list.tensor(input).length;
  }
  if (const auto role = misfit(found.layout, lengths)) {
    const std::uint32_t input = found.input(*role);
    if (input == QuantizedWeight::kNone || input == weight.number) {
      weight.refuse("its size does not fit its shape");
    }
    weight.refuse(list.tensor(input));
  }
  return inputs;
}

// Returns the bytes of the values. Call it after inputs_of().
std::uint64_t length_of(const Candidate& weight, DType to) {
  std::uint64_t elements = 1;
  // This cannot overflow after inputs_of().
  for (const std::uint64_t dim : weight.found.shape) elements *= dim;
  const auto length = type_info(to).bytes_of(elements);
  if (!length) weight.refuse("its size overflows");
  return *length;
}

// Values that cannot be determined: reading them fails with EIO.
class UnknownValues : public ComputedTensor {
 public:
  UnknownValues(const Tensor& of, std::uint64_t length) : of_(of), length_(length) {}

  Tensor tensor() const override {
    return {.name = of_.name,
            .path = {},
            .dtype = DType::kF32,
            .shape = of_.shape,
            .length = length_,
            .locator = std::nullopt,
            .computed = this};
  }
  Content content() const override {
    class Failing : public Producer {
     public:
      explicit Failing(std::uint64_t length) : length_(length) {}
      std::uint64_t size() const override { return length_; }
      int produce(std::uint64_t, std::span<std::byte>) const override { return EIO; }
      void missing(std::uint64_t, std::uint64_t, std::vector<Extent>&) const override {}

     private:
      std::uint64_t length_;
    };
    Content content;
    content.production(std::make_unique<Failing>(length_));
    return content;
  }
  std::vector<Tensor> inputs() const override { return {of_}; }
  std::string_view scheme() const override { return "unknown"; }

 private:
  Tensor of_;
  std::uint64_t length_;
};

struct ScaledValues : public ComputedTensors {
  QuantizedTensors known{DType::kF32};
  std::deque<UnknownValues> unknown;
};

// The fate of a tensor of the list below: one of these, or the number of the computed tensor that
// replaces it.
constexpr std::uint32_t kKept = ~std::uint32_t{0};  // it is shown unchanged
constexpr std::uint32_t kGone = kKept - 1;          // it is not shown: a scale, a zero point

// Returns the quantised weight, without ".weight", that a tensor belongs to according to its name.
// A part of "m" is named "m.weight_part", "m.scale" or "m.scale.more"; a part of the fused experts
// "m" may also be named "m_scale". `is_weight` must return true for the result.
template <class IsWeight>
std::optional<std::string_view> weight_of_companion(std::string_view name, IsWeight is_weight) {
  constexpr int kMaxParts = 64;  // the maximum number of words in the last part of a name
  constexpr std::string_view kWeight = ".weight";
  if (const std::size_t at = name.rfind(kWeight); at != std::string_view::npos) {
    const std::string_view rest = name.substr(at + kWeight.size());
    const bool is_more = rest.starts_with('_') || rest.starts_with('.');
    if (is_more && is_weight(name.substr(0, at))) return name.substr(0, at);
  }
  const std::size_t dot = name.rfind('.');
  const std::size_t begin = dot == std::string_view::npos ? 0 : dot;
  const std::size_t word = companion_word_position(name.substr(begin));
  std::size_t at = word == std::string_view::npos ? place_of_unknown_part(name) : begin + word;
  if (at == std::string_view::npos) return std::nullopt;
  for (int i = 0; i < kMaxParts; ++i, --at) {
    at = name.find_last_of(at > begin ? "._" : ".", at);
    if (at == std::string_view::npos) break;
    if (is_weight(name.substr(0, at))) return name.substr(0, at);
    if (at == 0) break;
  }
  return std::nullopt;
}

[[noreturn]] void refuse_companion(const Tensor& tensor, std::string_view weight) {
  Finder::refuse(tensor, "stands beside the quantised weight " + in_quotes(weight) +
                             ", and it is not known what for: the values would be wrong");
}

std::string_view without_weight(std::string_view name) {
  constexpr std::string_view kEnding = ".weight";
  return name.ends_with(kEnding) ? without_ending(name, kEnding) : name;
}

class Dequantizer {
 public:
  Dequantizer(const TensorList& list, DType to, Sources& sources)
      : list_(list),
        to_(to),
        shows_values_(shows_values(list)),
        lacks_part_of_gguf_(lacks_part_of_gguf(list)),
        finder_(list, sources),
        outcomes_(list.size(), kKept),
        tensors_(std::make_unique<QuantizedTensors>(to)) {}

  // Decides the fate of each tensor. Call it once.
  void find() {
    for (const MissingTensor& missing : list_.missing()) {
      if (!missing.name) continue;
      // Without its text, a weight of ComfyUI would be taken for a weight of ModelOpt.
      const bool is_needed =
          !find_auxiliary(*missing.name) || missing.name->ends_with(".comfy_quant");
      if (is_needed) lost_.emplace(base_of_part(*missing.name));
    }
    refuse_known();
    finder_.refuse_unknown_methods();
    asked_ = 0;
    for (std::uint32_t i = 0; i < outcomes_.size(); ++i) {
      fetch_ahead(i);
      find_scheme(i);
    }
    refuse_unknown_parts();
    finish_left();
    refuse_companions();
  }

  // Turns `list`, the list that was given to the constructor, into the result. Call it after
  // find().
  void show(TensorList& list) {
    if (std::ranges::count(outcomes_, kKept) == std::ssize(outcomes_)) {
      // If a SOURCE shows values already, its method is known.
      if (!shows_values_) finder_.refuse_any_method();
      return warn_of_codes(list);
    }
    warn_of_codes(list);
    warn_of_other_scales(list);
    warn_of_parts(list);
    for (std::string& line : finder_.warnings()) list.add_warning(std::move(line));
    std::string text(kDequantizeOption);
    text.append("=").append(dequantized_word(to_)).push_back('\0');
    text += finder_.config_texts();
    std::vector<TensorList::Row> rows;
    for (std::uint32_t i = 0; i < outcomes_.size(); ++i) {
      if (outcomes_[i] == kGone) continue;
      rows.push_back(list_.row(i));
      if (outcomes_[i] == kKept) continue;
      rows.back().computed = &tensors_->tensor(outcomes_[i]);
      rows.back().values = nullptr;
    }
    list.show(std::move(rows), std::move(tensors_), std::move(text), hidden_keys());
  }

  // Returns the weights that are stored as codes. Call it after find().
  StoredCodes stored_codes() const {
    StoredCodes codes;
    for (std::uint32_t i = 0; i < outcomes_.size(); ++i) {
      const std::uint32_t fate = outcomes_[i];
      if (fate == kGone) codes.tensors.push_back(i);
      if (fate == kKept || fate == kGone) continue;
      const std::vector<Tensor> inputs = tensors_->tensor(fate).inputs();
      const std::string_view scheme = tensors_->tensor(fate).scheme();
      const TypeInfo& type = type_info(inputs.front().dtype);
      if (type.kind == TypeKind::kQuantized || scheme == plain_scheme().name) continue;
      if (codes.weights++ == 0) codes.scheme = scheme;
      codes.tensors.push_back(i);
    }
    return codes;
  }

 private:
  // Returns true if one of the SOURCEs is a mount with the layer `dequantize`.
  static bool shows_values(const TensorList& list) {
    const std::string beginning = std::string(kDequantizeOption) + "=";
    return std::ranges::any_of(
        list.texts(), [&](const std::string& text) { return text.starts_with(beginning); });
  }
  // Returns true if the tensor may be a quantised weight. Values that such a mount computes are
  // not.
  bool may_be_weight(const Tensor& tensor) const {
    return tensor.locator || !shows_values_ || may_hold_codes(tensor.dtype);
  }

  // Prefetches the tensors that schemes will soon read. They read them one after the other.
  void fetch_ahead(std::uint32_t number) {
    constexpr std::size_t kAhead = 1024;   // the maximum distance, in tensors
    constexpr std::uint64_t kMost = 4096;  // the maximum bytes per tensor
    for (; asked_ < std::min(number + kAhead, outcomes_.size()); ++asked_) {
      const std::optional<Extent> place = list_.locator(asked_);
      if (!place || place->length == 0 || place->source->is_complete()) continue;
      const std::string_view name = list_.name(asked_);
      const bool is_read = name.ends_with(".weight_format") || name.ends_with(".comfy_quant") ||
                           name.ends_with(".weight_shape") ||
                           name.find(".quant_state.bitsandbytes__") != std::string_view::npos ||
                           (name.ends_with(".qzeros") && finder_.config(asked_).is_symmetric);
      if (is_read) place->source->prefetch({place->offset, std::min(place->length, kMost)});
    }
  }

  // Returns true if a part of the same weight is in a shard that is missing
  // (LoadOptions::allow_missing). The remaining parts are then not shown.
  bool is_half_of_lost(const Tensor& tensor) const {
    const std::string_view base = base_of_part(tensor.name);
    if (!lost_.contains(base)) return false;
    const bool is_plain_number =
        tensor.dtype == DType::kBF16 || tensor.dtype == DType::kF16 || tensor.dtype == DType::kF32;
    // A norm has no scales that it could have lost.
    return !is_plain_number || (!tensor.name.ends_with(".weight") && tensor.name != base);
  }

  // Returns true if the tensor's scale may be in a missing file of a GGUF checkpoint.
  bool may_have_lost_scale(std::uint32_t number, const Tensor& tensor) const {
    if (!lacks_part_of_gguf_ || !is_scaled_in_gguf(tensor.dtype)) return false;
    const Candidate weight(finder_, number, tensor);
    return !weight.find(weight.module(), ".scale") && !weight.find(tensor.name, ".scale");
  }

  // Checks the format of a weight that ComfyUI names in a tensor beside it.
  // refuse_formats_in_headers() checks the formats in headers.
  void refuse_formats_of_comfy(std::uint32_t number) const {
    const Tensor tensor = list_.tensor(number);
    if (!tensor.name.ends_with(".comfy_quant")) return;
    const ComfyLayer layer = comfy_layer(finder_.bytes_of(tensor));
    if (!layer.refused.empty()) Finder::refuse(tensor, layer.refused);
    refuse_other_type(without_ending(tensor.name, ".comfy_quant"), layer);
    finder_.note_unknown(list_.part_of(number), layer.unknown);
  }

  // Refuses codes of another type than the type of the format which ComfyUI names for them.
  void refuse_other_type(std::string_view name, const ComfyLayer& layer) const {
    const auto number = list_.find(std::string(name) + ".weight");
    if (!number || !layer.weight) return;
    const Tensor weight = list_.tensor(*number);
    if (!may_hold_codes(weight.dtype) || weight.dtype == layer.weight) return;
    Finder::refuse(weight, "is " + std::string(dtype_name(weight.dtype)) +
                               ", and ComfyUI's format of it is " + in_quotes(layer.format) +
                               ": one of them is wrong");
  }

  // Refuses weights of Ollama, which are packed like MLX's, but have parts with other names.
  void refuse_of_ollama(std::uint32_t number) const {
    const Tensor tensor = list_.tensor(number);
    if (tensor.dtype != DType::kU32) return;
    const std::string_view module =
        tensor.name.substr(0, tensor.name.size() - (tensor.name.ends_with(".weight") ? 7 : 0));
    if (!finder_.find(tensor.name, ".scale") && !finder_.find(module, ".scale")) return;
    auto type = finder_.metadata(number, std::string(tensor.name) + ".quant_type");
    if (!type) type = finder_.metadata(number, "quant_type");
    if (!type) return;
    Finder::refuse(tensor, "is packed by Ollama (quant_type " + in_quotes(*type) +
                               "), whose files are not supported: take the model from the "
                               "repository that it was made from");
  }

  void refuse_formats_in_headers() const {
    for (const Part& part : list_.parts()) {
      const std::string rotation = rotation_in(part.header.metadata);
      if (!rotation.empty()) {
        throw Error(ErrorCode::kQuantized, part.source->path(),
                    "__metadata__ has " + in_quotes(rotation) +
                        ", which is not supported: the weights are rotated; convert the "
                        "checkpoint with the library that made it");
      }
      const auto at = part.header.metadata.find(kComfyKey);
      if (!at) continue;
      const auto refuse = [&](const std::string& reason) {
        throw Error(ErrorCode::kQuantized, part.source->path(),
                    std::string(kComfyKey) + ": " + reason);
      };
      const auto layers = comfy_layers(part.header.metadata[*at].second);
      if (!layers) refuse("is not the JSON of the formats of ComfyUI");
      for (const auto& [name, layer] : *layers) {
        if (!layer.refused.empty()) refuse(in_quotes(name) + ": " + layer.refused);
        refuse_other_type(name, layer);
        finder_.note_unknown(part, layer.unknown);
      }
    }
  }

  // Returns the hidden keys of each part.
  std::vector<std::vector<std::string>> hidden_keys() const {
    std::vector<std::vector<std::string>> keys;
    for (const Part& part : list_.parts()) {
      keys.push_back(keys_of_quantisation(part.header.metadata));
      // Keys that the layers below hide, such as a delta's checksums, stay hidden.
      keys.back().insert(keys.back().end(), part.hidden_keys.begin(), part.hidden_keys.end());
      std::ranges::sort(keys.back());
    }
    return keys;
  }

  void refuse_known() {
    bool has_codes = false;
    for (std::uint32_t i = 0; i < outcomes_.size() && !has_codes; ++i) {
      has_codes = may_hold_codes(list_.tensor(i).dtype);
    }
    if (has_codes) refuse_formats_in_headers();
    for (std::uint32_t i = 0; i < outcomes_.size(); ++i) {
      const Tensor tensor = list_.tensor(i);
      const std::string reason = reason_to_refuse(tensor.name);
      if (!reason.empty() && (has_codes || is_integer(tensor))) Finder::refuse(tensor, reason);
      if (!has_codes) continue;
      refuse_of_ollama(i);
      fetch_ahead(i);
      refuse_formats_of_comfy(i);
    }
  }

  void find_scheme(std::uint32_t number) {
    const Tensor tensor = list_.tensor(number);
    if (outcomes_[number] != kKept || !may_be_weight(tensor)) return;
    if (is_half_of_lost(tensor) || may_have_lost_scale(number, tensor)) {
      outcomes_[number] = kGone;
      return;
    }
    Candidate weight(finder_, number, tensor);
    for (const Scheme& scheme : schemes()) {
      if (scheme.find(weight)) return add(scheme, std::move(weight));
    }
  }

  static bool is_integer(const Tensor& tensor) {
    const TypeKind kind = type_info(tensor.dtype).kind;
    return kind == TypeKind::kSigned || kind == TypeKind::kUnsigned;
  }

  // Warns of integers and FP4 that no scheme took, because they may be codes of weights. Integers
  // of 64 bits are positions, and masks and biases are skipped.
  void warn_of_codes(TensorList& list) const {
    std::uint64_t count = 0;
    std::uint32_t first = 0;
    for (std::uint32_t i = 0; i < outcomes_.size(); ++i) {
      const Tensor tensor = list_.tensor(i);
      const std::string_view layer = tensor.name.substr(tensor.name.find_last_of("./") + 1);
      const bool is_matrix = tensor.shape.size() > 1 && tensor.shape.back() > 1 &&
                             tensor.shape[tensor.shape.size() - 2] > 1;
      const bool is_weight = is_matrix || (layer == "weight" && tensor.elements() > 1);
      const unsigned bits = type_info(tensor.dtype).bits();
      if (outcomes_[i] != kKept || !is_weight || (is_integer(tensor) ? bits > 32 : bits >= 8) ||
          layer == "bias" || layer == "mask" || layer.ends_with("_bias") ||
          layer.ends_with("_mask") || list_.part_of(i).format->name == kGgufName) {
        continue;
      }
      if (count++ == 0) first = i;
    }
    if (count == 0) return;
    const Tensor tensor = list_.tensor(first);
    list.add_warning(
        printable(public_name(list_.part_of(first).source->path())) + ": tensor " +
        in_quotes(tensor.name) +
        (count > 1 ? " and " + std::to_string(count - 1) + " more of integers" : "") + ": " +
        std::string(dtype_name(tensor.dtype)) + " " + shape_json(tensor.shape) +
        " of no known scheme of quantisation, shown as stored: if they are codes of weights, "
        "convert the checkpoint with the library that made it");
  }

  // Warns of FP8 without a scale if another module has a tensor with the name of a scale.
  void warn_of_other_scales(TensorList& list) const {
    if (!plain_) return;
    for (std::uint32_t i = 0; i < outcomes_.size(); ++i) {
      const std::string_view name = list_.name(i);
      if (outcomes_[i] != kKept || place_of_unknown_part(name) == std::string_view::npos ||
          is_scale_of_model(name)) {
        continue;
      }
      list.add_warning(printable(public_name(list_.part_of(*plain_).source->path())) + ": tensor " +
                       in_quotes(list_.name(*plain_)) +
                       ": FP8 without a scale beside it: its codes are shown as values, without " +
                       in_quotes(name) +
                       ": if that is its scale, convert the checkpoint with the "
                       "library that made it");
      return;
    }
  }

  // Refuses a weight if the config names a transformation. The block types of GGUF need no config.
  static void refuse_transformed(const Candidate& weight) {
    if (type_info(weight.tensor.dtype).kind == TypeKind::kQuantized) return;
    const QuantizationConfig& config = weight.config();
    if (config.refused.empty()) return;
    weight.refuse(printable(config.file) + " has " + in_quotes(config.refused) +
                  ", which is not supported: the weights would have to be transformed");
  }

  void add(const Scheme& scheme, Candidate weight) {
    const Tensor& tensor = weight.tensor;
    refuse_transformed(weight);
    QuantizedWeight& found = weight.found;
    const std::vector<Input> inputs = inputs_of(list_, weight);
    const std::uint64_t length = length_of(weight, to_);
    std::vector<std::uint32_t> gone = found.others;
    for (const std::uint32_t input : found.inputs) {
      if (input != QuantizedWeight::kNone) gone.push_back(input);
    }
    for (const std::uint32_t other : gone) {
      if (outcomes_[other] != kKept) {
        weight.refuse(in_quotes(list_.name(other)) + " belongs to another weight too");
      }
      outcomes_[other] = kGone;
    }
    const auto same = list_.find(found.name);
    if (same && *same != weight.number) {
      weight.refuse("its values would be " + in_quotes(found.name) +
                    ", and there is a tensor of this name");
    }
    if (!same && !new_names_.insert(found.name).second) {
      weight.refuse("its values would be " + in_quotes(found.name) +
                    ", as those of another tensor");
    }
    computed_[std::string(without_weight(found.name))] = {
        .matrices = std::max<std::uint64_t>(matrices_of(found.shape).matrices, 1),
        .has_parts = type_info(tensor.dtype).kind != TypeKind::kQuantized ||
                     is_scaled_in_gguf(tensor.dtype)};
    outcomes_[weight.number] = tensors_->add(std::move(found), scheme, inputs, length);
  }

  // Refuses a part of a quantised weight that no scheme has used, because the values would be wrong
  // without it. The blocks of GGUF have no parts.
  void refuse_companions() const {
    const auto is_weight = [&](std::string_view name) {
      const auto weight = computed_.find(name);
      return weight != computed_.end() && weight->second.has_parts;
    };
    for (std::uint32_t i = 0; i < outcomes_.size(); ++i) {
      if (outcomes_[i] != kKept) continue;
      const auto weight = weight_of_companion(list_.name(i), is_weight);
      if (weight) refuse_companion(list_.tensor(i), *weight);
    }
  }

  // Warns of other tensors in the module of a quantised weight, because parameters of a model,
  // except biases, are in modules of their own.
  void warn_of_parts(TensorList& list) const {
    if (plain_) return;  // warn_of_other_scales() warns of FP8 without scales
    std::uint32_t count = 0;
    std::uint32_t first = 0;
    for (std::uint32_t i = 0; i < outcomes_.size(); ++i) {
      const std::string_view name = list_.name(i);
      const std::size_t dot = name.rfind('.');
      if (outcomes_[i] != kKept || dot == std::string_view::npos || name.ends_with("bias"))
        continue;
      const auto weight = computed_.find(name.substr(0, dot));
      if (weight == computed_.end() || !weight->second.has_parts) continue;
      if (list_.tensor(i).elements() > 1 && count++ == 0) first = i;
    }
    if (count == 0) return;
    const std::string_view name = list_.name(first);
    list.add_warning(printable(public_name(list_.part_of(first).source->path())) + ": tensor " +
                     in_quotes(name) +
                     (count > 1 ? " and " + std::to_string(count - 1) + " more" : "") +
                     ": beside the quantised weight " + in_quotes(name.substr(0, name.rfind('.'))) +
                     ", and no part of its values that is known: if it is one, convert the "
                     "checkpoint with the library that made it");
  }

  // The codes that no scheme took, by the names of the tensors and of their modules.
  using Codes = std::multimap<std::string_view, std::uint32_t>;
  Codes codes_left() const {
    Codes codes;
    for (std::uint32_t i = 0; i < outcomes_.size(); ++i) {
      const Tensor tensor = list_.tensor(i);
      // Positions and masks are I64 or BOOL, or are not matrices.
      const bool is_weight =
          tensor.shape.size() > 1 || (is_fp8(tensor.dtype) && tensor.name.ends_with(".weight"));
      if (outcomes_[i] != kKept || !is_weight || !may_hold_codes(tensor.dtype)) continue;
      const std::size_t end = tensor.name.find_last_of("./");
      codes.emplace(tensor.name, i);
      codes.emplace(end == std::string_view::npos ? "" : tensor.name.substr(0, end), i);
    }
    return codes;
  }

  // Refuses codes beside a tensor that may be a part of their values in an unknown way.
  void refuse_unknown_parts() const {
    constexpr int kMaxParts = 64;  // the maximum number of words in a name
    const Codes codes = codes_left();
    if (codes.empty()) return;
    for (std::uint32_t i = 0; i < outcomes_.size(); ++i) {
      if (outcomes_[i] != kKept) continue;
      const std::string_view name = list_.name(i);
      std::size_t at = place_of_unknown_part(name);
      if (at == std::string_view::npos) continue;
      const auto look = [&](std::string_view of) {
        const auto [begin, end] = codes.equal_range(of);
        for (auto weight = begin; weight != end; ++weight) {
          if (weight->second == i) continue;
          const Tensor tensor = list_.tensor(weight->second);
          Finder::refuse(tensor, "is " + std::string(dtype_name(tensor.dtype)) + ", and " +
                                     in_quotes(name) +
                                     " may be its scale or another part of its values, in a way "
                                     "that is not known: convert the checkpoint with the library "
                                     "that made it");
        }
      };
      const std::size_t first = name.find_first_of("./");
      if (first == std::string_view::npos) {
        look("");
      } else if (first > at) {
        look(name.substr(first + 1));  // "scales.m.weight"
      }
      // A part of "m.weight" is "m.part", "m.weight.part" or "m_part".
      for (int i_part = 0; i_part < kMaxParts; ++i_part, --at) {
        at = name.find_last_of("._/", at);
        if (at == std::string_view::npos || at == 0) break;
        look(name.substr(0, at));
      }
    }
  }

  // Returns true if the tensor is a mark, or a scale of inputs, outputs or the cache, and not a
  // parameter of the model that only has the name of one.
  bool is_unused_scale(const Tensor& tensor) const {
    const auto part = find_auxiliary(tensor.name);
    if (!part) return false;
    const auto weight = computed_.find(part->module);
    if (weight != computed_.end()) return is_auxiliary(*part, tensor, weight->second.matrices);
    if (lost_.contains(part->module)) return true;
    const std::string module = lower_case(part->module);
    const auto is_projection = [&](std::string_view name) { return module.ends_with(name); };
    constexpr std::string_view kProjections[] = {".q_proj", ".k_proj", ".v_proj", ".qkv_proj"};
    const bool is_of_attention = module.find("attn") != std::string::npos ||
                                 module.find("attention") != std::string::npos ||
                                 std::ranges::any_of(kProjections, is_projection) ||
                                 computed_.contains(std::string(part->module) + ".k_proj");
    const bool is_of_inputs = part->of == AuxiliaryTensor::kInputs;
    return (part->of == AuxiliaryTensor::kMark || (is_of_attention && !is_of_inputs)) &&
           is_auxiliary(*part, tensor, 0);
  }

  // Decides the fate of the tensors that no scheme took.
  void finish_left() {
    const bool is_quantized = !tensors_->is_empty();
    for (std::uint32_t i = 0; i < outcomes_.size(); ++i) {
      if (outcomes_[i] != kKept) continue;
      const Tensor tensor = list_.tensor(i);
      if (!may_be_weight(tensor)) continue;
      Candidate weight(finder_, i, tensor);
      if (!is_quantized && plain_scheme().find(weight)) {
        if (const QuantizationConfig& config = weight.config(); !config.method.empty()) {
          weight.refuse("is FP8 without a scale, and " + printable(config.file) +
                        " names quant_method " + in_quotes(config.method) +
                        ": name the whole checkpoint");
        }
        if (!plain_) plain_ = i;
        add(plain_scheme(), std::move(weight));
      } else if (is_quantized && is_unused_scale(tensor)) {
        outcomes_[i] = kGone;
      } else if (const std::string reason = reason_if_unclaimed(finder_, tensor, is_quantized);
                 !reason.empty()) {
        Finder::refuse(tensor, reason);
      }
    }
  }

  const TensorList& list_;
  DType to_;
  bool shows_values_;
  bool lacks_part_of_gguf_;
  Finder finder_;
  // The weights of which a part is missing, by base_of_part().
  std::set<std::string, std::less<>> lost_;
  std::vector<std::uint32_t> outcomes_;
  std::optional<std::uint32_t> plain_;  // the first weight of FP8 without a scale
  std::uint32_t asked_ = 0;             // fetch_ahead() has handled the tensors before this one
  // The names of results that no stored tensor has.
  std::unordered_set<std::string> new_names_;
  struct Computed {
    std::uint64_t matrices = 1;  // in a stack of experts
    bool has_parts = true;       // false for blocks of GGUF, which have none
  };
  std::map<std::string, Computed, std::less<>> computed_;  // by the result's name without ".weight"
  std::unique_ptr<QuantizedTensors> tensors_;
};

}  // namespace

std::optional<DType> dequantized_type(std::string_view word) {
  const auto row = std::ranges::find(kTypeWords, word, [](const auto& w) { return w.first; });
  return row == kTypeWords.end() ? std::nullopt : std::optional(row->second);
}

std::string_view dequantized_word(DType type) {
  const auto row = std::ranges::find(kTypeWords, type, [](const auto& w) { return w.second; });
  return row == kTypeWords.end() ? "" : row->first;
}

TensorList dequantize(TensorList below, DType to, Sources& sources) {
  Dequantizer dequantizer(below, to, sources);
  dequantizer.find();
  dequantizer.show(below);
  return below;
}

void set_scaled_values(TensorList& list, Sources& sources) {
  const auto is_gguf = [](const Part& part) { return part.format->name == kGgufName; };
  if (std::ranges::none_of(list.parts(), is_gguf)) return;
  std::vector<std::uint32_t> weights;
  std::map<std::string_view, std::uint32_t> scaled;  // by their names without ".weight"
  for (std::uint32_t i = 0; i < list.size(); ++i) {
    const Tensor tensor = list.tensor(i);
    if (tensor.values != nullptr || !is_gguf(list.part_of(i))) continue;
    weights.push_back(i);
    if (is_scaled_in_gguf(tensor.dtype)) scaled.emplace(without_weight(list.name(i)), i);
  }
  list.sort_names();
  const Finder finder(list, sources);
  if (!finder.has_ending(".scale") && scaled.empty()) return;
  std::map<std::uint32_t, std::uint32_t> unexplained;  // parts that llama.cpp does not know
  const auto is_scaled = [&](std::string_view name) { return scaled.contains(name); };
  for (std::uint32_t i = 0; i < list.size() && !scaled.empty(); ++i) {
    const std::string_view name = list.name(i);
    if (name.ends_with(".scale") || find_auxiliary(name)) continue;
    if (const auto of = weight_of_companion(name, is_scaled)) unexplained.emplace(scaled[*of], i);
  }
  auto made = std::make_unique<ScaledValues>();
  std::vector<std::pair<std::uint32_t, const ComputedTensor*>> values;
  for (const std::uint32_t i : weights) {
    const Tensor tensor = list.tensor(i);
    Candidate weight(finder, i, tensor);
    try {
      find_gguf(weight);
      if (const auto part = unexplained.find(i); part != unexplained.end()) {
        weight.refuse(list.tensor(part->second), "it is not known what for");
      }
      if (weight.found.input(Role::kScale) == QuantizedWeight::kNone) continue;
      std::vector<Input> inputs = inputs_of(list, weight);
      const std::uint64_t length = length_of(weight, DType::kF32);
      const std::uint32_t number =
          made->known.add(std::move(weight.found), schemes().front(), std::move(inputs), length);
      values.emplace_back(i, &made->known.tensor(number));
    } catch (const Error& error) {
      const auto length = type_info(DType::kF32).bytes_of(tensor.elements());
      values.emplace_back(i, &made->unknown.emplace_back(tensor, length.value_or(0)));
      if (made->unknown.size() == 1) {
        list.add_warning(std::string(error.what()) + "; its bytes alone can be read");
      }
    }
  }
  if (values.empty()) return;
  if (made->unknown.size() > 1) {
    list.add_warning("and so " + std::to_string(made->unknown.size() - 1) + " more tensors");
  }
  list.set_values(values, std::move(made));
}

std::optional<StoredCodes> stored_codes(const TensorList& list, Sources& sources) {
  bool may_have_codes = false;
  for (std::uint32_t i = 0; i < list.size() && !may_have_codes; ++i) {
    may_have_codes = may_hold_codes(list.tensor(i).dtype);
  }
  if (!may_have_codes) return std::nullopt;
  try {
    Dequantizer dequantizer(list, DType::kBF16, sources);
    dequantizer.find();
    StoredCodes codes = dequantizer.stored_codes();
    return codes.weights == 0 ? std::nullopt : std::optional(std::move(codes));
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace stfs
