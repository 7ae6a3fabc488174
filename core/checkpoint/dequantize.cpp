#include "core/checkpoint/dequantize.h"

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/checkpoint/checkpoint.h"
#include "core/checkpoint/schemes.h"
#include "core/recipe/dequantize.h"

#include <algorithm>
#include <array>
#include <ctime>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <unordered_set>
#include <utility>

namespace stfs {
namespace {

constexpr std::array<std::pair<std::string_view, DType>, 3> kWords{
    {{"bf16", DType::kBF16}, {"f16", DType::kF16}, {"f32", DType::kF32}}};

// The computed tensors of a checkpoint: a record each, and layouts that experts share.
class QuantizedTensors : public ComputedTensors {
 public:
  explicit QuantizedTensors(DType type) : type_(type) {}

  // `stored` are numbers of stored tensors, or kNone.
  std::uint32_t add(const QuantizedWeight& weight, const Scheme& scheme,
                    const std::array<std::uint32_t, kRoles>& stored, std::uint64_t length) {
    records_.push_back({.name_begin = names_.size(),
                        .shape_begin = dims_.size(),
                        .length = length,
                        .scheme = &scheme,
                        .layout = layout_number(weight.layout),
                        .name_length = static_cast<std::uint32_t>(weight.name.size()),
                        .rank = static_cast<std::uint32_t>(weight.shape.size()),
                        .inputs = stored});
    names_ += weight.name;
    dims_.insert(dims_.end(), weight.shape.begin(), weight.shape.end());
    return static_cast<std::uint32_t>(records_.size() - 1);
  }

  // Call it once all are added.
  void finish() {
    names_.shrink_to_fit();
    dims_.shrink_to_fit();
    records_.shrink_to_fit();
    tensors_ = std::make_unique<One[]>(records_.size());
    for (std::uint32_t i = 0; i < records_.size(); ++i) tensors_[i].set(*this, i);
  }

  bool is_empty() const { return records_.empty(); }

  std::string_view name(std::uint32_t i) const override {
    return std::string_view(names_).substr(records_[i].name_begin, records_[i].name_length);
  }
  std::span<const std::uint64_t> shape(std::uint32_t i) const override {
    return std::span(dims_).subspan(records_[i].shape_begin, records_[i].rank);
  }
  DType dtype(std::uint32_t) const override { return type_; }
  std::uint64_t length(std::uint32_t i) const override { return records_[i].length; }
  const ComputedTensor& tensor(std::uint32_t i) const override { return tensors_[i]; }

  void move_to(const Checkpoint& owner, std::uint32_t added) override {
    owner_ = &owner;
    first_ += added;
  }

 private:
  class One : public ComputedTensor {
   public:
    void set(const QuantizedTensors& of, std::uint32_t number) {
      of_ = &of;
      number_ = number;
    }
    Content content() const override { return of_->content(number_); }
    timespec mtime() const override { return of_->mtime(number_); }
    std::vector<Tensor> inputs() const override { return of_->inputs(number_); }
    std::string_view scheme() const override { return of_->records_[number_].scheme->name; }
    std::optional<QuantizedRecipe> recipe() const override { return of_->recipe(number_); }

   private:
    const QuantizedTensors* of_ = nullptr;
    std::uint32_t number_ = 0;
  };

  struct Record {
    std::uint64_t name_begin;   // in names_
    std::uint64_t shape_begin;  // in dims_
    std::uint64_t length;       // bytes
    const Scheme* scheme;
    std::uint32_t layout;       // in layouts_
    std::uint32_t name_length;  // bytes
    std::uint32_t rank;
    std::array<std::uint32_t, kRoles> inputs;
  };

  // The layouts of the experts of a layer are the same: looks at the last few.
  std::uint32_t layout_number(const QuantizedLayout& layout) {
    constexpr std::size_t kLast = 16;
    const std::size_t first = layouts_.size() - std::min(layouts_.size(), kLast);
    const auto known = std::find_if(layouts_.begin() + static_cast<std::ptrdiff_t>(first),
                                    layouts_.end(), [&](const auto& l) { return *l == layout; });
    if (known == layouts_.end()) {
      layouts_.push_back(std::make_unique<const QuantizedLayout>(layout));
      return static_cast<std::uint32_t>(layouts_.size() - 1);
    }
    return static_cast<std::uint32_t>(known - layouts_.begin());
  }

  QuantizedRecipe recipe(std::uint32_t i) const {
    const Record& record = records_[i];
    QuantizedRecipe recipe{.layout = layouts_[record.layout].get(), .inputs = {}};
    for (std::size_t role = 0; role < kRoles; ++role) {
      if (record.inputs[role] == QuantizedWeight::kNone) continue;
      recipe.inputs[role] = *owner_->stored_tensor(first_ + record.inputs[role]).locator;
    }
    return recipe;
  }

  Content content(std::uint32_t i) const {
    const QuantizedRecipe recipe = this->recipe(i);
    Content content;
    content.production(dequantized(*recipe.layout, recipe.inputs, type_, tiles_, i));
    return content;
  }

  timespec mtime(std::uint32_t i) const {
    timespec newest{};
    for (const Tensor& input : inputs(i)) {
      const timespec mtime = input.mtime();
      if (std::pair(mtime.tv_sec, mtime.tv_nsec) > std::pair(newest.tv_sec, newest.tv_nsec)) {
        newest = mtime;
      }
    }
    return newest;
  }

  std::vector<Tensor> inputs(std::uint32_t i) const {
    std::vector<Tensor> inputs;
    for (const std::uint32_t input : records_[i].inputs) {
      if (input == QuantizedWeight::kNone) continue;
      inputs.push_back(owner_->stored_tensor(first_ + input));
    }
    return inputs;
  }

  DType type_;
  const Checkpoint* owner_ = nullptr;
  std::uint32_t first_ = 0;
  std::vector<Record> records_;
  std::string names_;
  std::vector<std::uint64_t> dims_;
  std::vector<std::unique_ptr<const QuantizedLayout>> layouts_;
  std::unique_ptr<One[]> tensors_;
  mutable TileCache tiles_;
};

class Dequantizer {
 public:
  Dequantizer(const Checkpoint& checkpoint, DType to, Sources& sources)
      : checkpoint_(checkpoint),
        to_(to),
        finder_(checkpoint, sources),
        fates_(checkpoint.tensor_count(), Dequantized::kKept),
        tensors_(std::make_unique<QuantizedTensors>(to)) {}

  Dequantized run() {
    for (const MissingTensor& missing : checkpoint_.missing()) {
      if (!missing.name) continue;
      // Without its text a weight of ComfyUI would be taken for one of ModelOpt.
      const bool is_needed = !vanishes(*missing.name) || missing.name->ends_with(".comfy_quant");
      if (is_needed) lost_.emplace(base_of_part(*missing.name));
    }
    fetch_ahead();
    refuse_known();
    finder_.refuse_unknown_methods();
    for (std::uint32_t i = 0; i < fates_.size(); ++i) find_scheme(i);
    finish_left();
    refuse_companions();
    if (std::ranges::count(fates_, Dequantized::kKept) == std::ssize(fates_)) {
      // Values that are shown already are of a method that is known.
      if (!shows_values()) finder_.refuse_any_method();
      return {};
    }
    tensors_->finish();
    std::vector<std::string> warnings = finder_.warnings();
    std::string text = "dequantize=" + std::string(dequantized_word(to_)) + '\0';
    text += finder_.config_texts();
    return {std::move(tensors_), std::move(fates_), std::move(text), std::move(warnings),
            hidden_keys()};
  }

 private:
  bool is_stored(const Tensor& tensor) const { return tensor.locator.has_value(); }
  bool shows_values() const {
    for (std::uint32_t i = 0; i < checkpoint_.tensor_count(); ++i) {
      if (!is_stored(checkpoint_.tensor(i))) return true;
    }
    return false;
  }

  // The texts that bitsandbytes stores as tensors are read one after the other.
  void fetch_ahead() const {
    for (std::uint32_t i = 0; i < fates_.size(); ++i) {
      const std::string_view name = checkpoint_.name(i);
      if (!name.ends_with(".weight_format") && !name.ends_with(".comfy_quant") &&
          name.find(".quant_state.bitsandbytes__") == std::string_view::npos) {
        continue;
      }
      const std::optional<Extent> place = checkpoint_.locator(i);
      if (place && place->length > 0) place->source->prefetch({place->offset, place->length});
    }
  }

  // Whether a part of the same weight is in a shard that is missing (LoadOptions::allow_missing):
  // what is left of it shows nothing.
  bool is_half_of_lost(const Tensor& tensor) const {
    const std::string_view base = base_of_part(tensor.name);
    if (!lost_.contains(base)) return false;
    const bool is_plain_number =
        tensor.dtype == DType::kBF16 || tensor.dtype == DType::kF16 || tensor.dtype == DType::kF32;
    // A norm is no weight that lost its scales.
    return !is_plain_number || (!tensor.name.ends_with(".weight") && tensor.name != base);
  }

  // ComfyUI names the format of a weight in a tensor beside it, or in the header.
  void refuse_formats_of_comfy(std::uint32_t number) const {
    const Tensor tensor = checkpoint_.tensor(number);
    if (!tensor.name.ends_with(".comfy_quant")) return;
    const ComfyLayer layer = comfy_layer(finder_.bytes_of(tensor));
    if (!layer.refused.empty()) Finder::refuse(tensor, layer.refused);
  }

  void refuse_formats_in_headers() const {
    for (const Part& part : checkpoint_.parts()) {
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
      }
    }
  }

  // By part.
  std::vector<std::vector<std::string>> hidden_keys() const {
    std::vector<std::vector<std::string>> keys;
    for (const Part& part : checkpoint_.parts()) {
      keys.push_back(keys_of_quantisation(part.header.metadata));
    }
    return keys;
  }

  void refuse_known() const {
    bool has_codes = false;
    for (std::uint32_t i = 0; i < fates_.size() && !has_codes; ++i) {
      has_codes = may_hold_codes(checkpoint_.tensor(i).dtype);
    }
    if (!has_codes) return;
    refuse_formats_in_headers();
    for (std::uint32_t i = 0; i < fates_.size(); ++i) {
      const std::string reason = reason_to_refuse(checkpoint_.name(i));
      if (!reason.empty()) Finder::refuse(checkpoint_.tensor(i), reason);
      refuse_formats_of_comfy(i);
    }
  }

  void find_scheme(std::uint32_t number) {
    const Tensor tensor = checkpoint_.tensor(number);
    if (fates_[number] != Dequantized::kKept || !is_stored(tensor)) return;
    if (is_half_of_lost(tensor)) {
      fates_[number] = Dequantized::kGone;
      return;
    }
    QuantizedWeight found;
    for (const Scheme& scheme : schemes()) {
      if (!scheme.find(finder_, number, tensor, found)) continue;
      add(scheme, number, tensor, found);
      return;
    }
  }

  // The types of GGUF need no config.
  void refuse_transformed(std::uint32_t number, const Tensor& tensor) const {
    if (type_info(tensor.dtype).kind == TypeKind::kQuantized) return;
    const QuantizationConfig& config = finder_.config(number);
    if (config.refused.empty()) return;
    Finder::refuse(tensor, printable(config.file) + " has " + in_quotes(config.refused) +
                               ", which is not supported: the weights would have to be "
                               "transformed");
  }

  void add(const Scheme& scheme, std::uint32_t number, const Tensor& tensor,
           const QuantizedWeight& found) {
    refuse_transformed(number, tensor);
    std::array<std::uint32_t, kRoles> stored = QuantizedWeight::no_inputs();
    QuantizedInputs extents;
    std::vector<std::uint32_t> gone = found.others;
    for (std::size_t role = 0; role < kRoles; ++role) {
      const std::uint32_t input = found.inputs[role];
      if (input == QuantizedWeight::kNone) continue;
      const Tensor part = checkpoint_.tensor(input);
      if (!is_stored(part)) Finder::refuse(tensor, in_quotes(part.name) + " is itself computed");
      stored[role] = checkpoint_.stored_number(input);
      extents[role] = *part.locator;
      gone.push_back(input);
    }
    if (const auto role = misfit(found.layout, extents)) {
      const std::uint32_t input = found.inputs[static_cast<std::size_t>(*role)];
      if (input == QuantizedWeight::kNone || input == number) {
        Finder::refuse(tensor, "its size does not fit its shape");
      }
      refuse_companion(tensor, checkpoint_.tensor(input));
    }
    std::uint64_t elements = 1;
    for (const std::uint64_t dim : found.shape) elements *= dim;  // misfit() excludes overflow
    const auto length = type_info(to_).bytes_of(elements);
    if (!length) Finder::refuse(tensor, "its size overflows");
    const auto same = checkpoint_.find(found.name);
    for (const std::uint32_t other : gone) {
      if (fates_[other] != Dequantized::kKept) {
        Finder::refuse(tensor,
                       in_quotes(checkpoint_.name(other)) + " belongs to another weight too");
      }
      fates_[other] = Dequantized::kGone;
    }
    if (same && *same != number) {
      Finder::refuse(tensor, "its values would be " + in_quotes(found.name) +
                                 ", and there is a tensor of this name");
    }
    if (!same && !new_names_.insert(found.name).second) {
      Finder::refuse(
          tensor, "its values would be " + in_quotes(found.name) + ", as those of another tensor");
    }
    fates_[number] = tensors_->add(found, scheme, stored, *length);
    if (type_info(tensor.dtype).kind != TypeKind::kQuantized) {
      computed_.insert(without_weight(found.name));
    }
  }

  static std::string without_weight(std::string_view name) {
    constexpr std::string_view kEnding = ".weight";
    return std::string(name.ends_with(kEnding) ? without_ending(name, kEnding) : name);
  }

  // A part of a quantised weight that nothing has used: its values would be wrong without it. The
  // blocks of GGUF have no parts.
  void refuse_companions() const {
    constexpr int kMostParts = 64;  // words in the last part of a name
    for (std::uint32_t i = 0; i < fates_.size(); ++i) {
      if (fates_[i] != Dequantized::kKept) continue;
      const std::string_view name = checkpoint_.name(i);
      const std::size_t dot = name.rfind('.');
      const std::size_t begin = dot == std::string_view::npos ? 0 : dot;
      const std::size_t word = place_of_companion(name.substr(begin));
      if (word == std::string_view::npos) continue;
      // The part of "m" is "m.part", and of the fused experts "m" also "m_part".
      std::size_t at = begin + word;
      for (int i_part = 0; i_part < kMostParts; ++i_part, --at) {
        at = name.find_last_of("._", at);
        if (at == std::string_view::npos || at < begin) break;
        if (computed_.contains(name.substr(0, at))) {
          Finder::refuse(checkpoint_.tensor(i),
                         "stands beside the quantised weight " + in_quotes(name.substr(0, at)) +
                             ", and it is not known what for: the values would be wrong");
        }
        if (at == 0) break;
      }
    }
  }

  // FP8 that looks as if it had no scale, beside a tensor that may be one under an unknown name.
  void refuse_unknown_scale(const Tensor& weight) {
    if (!weight.name.ends_with(".weight")) return;
    if (!knows_scales_) {
      for (std::uint32_t i = 0; i < fates_.size(); ++i) {
        const std::string_view name = checkpoint_.name(i);
        const std::size_t dot = name.rfind('.');
        if (dot == std::string_view::npos || vanishes(name)) continue;
        if (name.find("scale", dot) != std::string_view::npos) {
          scales_.emplace(name.substr(0, dot), i);
        }
      }
      knows_scales_ = true;
    }
    const auto scale = scales_.find(without_ending(weight.name, ".weight"));
    if (scale == scales_.end()) return;
    Finder::refuse(weight, "is FP8, and " + in_quotes(checkpoint_.name(scale->second)) +
                               " beside it may be its scale, in a way that is not known");
  }

  // Decides about the tensors that no scheme took.
  void finish_left() {
    const bool is_quantized = !tensors_->is_empty();
    for (std::uint32_t i = 0; i < fates_.size(); ++i) {
      if (fates_[i] != Dequantized::kKept) continue;
      const Tensor tensor = checkpoint_.tensor(i);
      if (!is_stored(tensor)) continue;
      QuantizedWeight found;
      if (!is_quantized && plain_scheme().find(finder_, i, tensor, found)) {
        refuse_unknown_scale(tensor);
        if (const QuantizationConfig& config = finder_.config(i); !config.method.empty()) {
          Finder::refuse(tensor, "is FP8 without a scale, and " + printable(config.file) +
                                     " names quant_method " + in_quotes(config.method) +
                                     ": name the whole checkpoint");
        }
        add(plain_scheme(), i, tensor, found);
      } else if (is_quantized && vanishes(tensor.name)) {
        fates_[i] = Dequantized::kGone;
      } else if (const std::string reason = reason_if_left(finder_, tensor, is_quantized);
                 !reason.empty()) {
        Finder::refuse(tensor, reason);
      }
    }
  }

  const Checkpoint& checkpoint_;
  DType to_;
  Finder finder_;
  std::set<std::string, std::less<>> lost_;  // of which weights parts are missing: base_of_part()
  std::vector<std::uint32_t> fates_;
  std::unordered_set<std::string> new_names_;  // of results, where no stored tensor has the name
  // Names of results, without ".weight".
  std::set<std::string, std::less<>> computed_;
  std::unique_ptr<QuantizedTensors> tensors_;
  bool knows_scales_ = false;
  // By the module's name: a tensor whose name tells of a scale. Views of the checkpoint's names.
  std::map<std::string_view, std::uint32_t> scales_;
};

}  // namespace

std::optional<DType> dequantized_type(std::string_view word) {
  const auto row = std::ranges::find(kWords, word, [](const auto& w) { return w.first; });
  return row == kWords.end() ? std::nullopt : std::optional(row->second);
}

std::string_view dequantized_word(DType type) {
  const auto row = std::ranges::find(kWords, type, [](const auto& w) { return w.second; });
  return row == kWords.end() ? "" : row->first;
}

Dequantized dequantize(const Checkpoint& checkpoint, DType to, Sources& sources) {
  return Dequantizer(checkpoint, to, sources).run();
}

}  // namespace stfs
