#include "core/layer/lora/lora_layer.h"

#include "core/base/error.h"
#include "core/base/json_text.h"
#include "core/base/text.h"
#include "core/layer/lora/adapter.h"
#include "core/layer/lora/merged.h"
#include "core/layer/lora/targets.h"
#include "core/remote/http/url.h"
#include "core/stored/stored_tensors.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

namespace stfs {
namespace {

constexpr const char* kConfigName = "adapter_config.json";
constexpr const char* kTensorsName = "adapter_model.safetensors";

// What adapters make of a tensor of the list below.
struct Change {
  Tensor base;                 // of the list below, or its replacement by an adapter
  bool is_replaced = false;
  std::vector<LoraUpdate> updates;
  std::vector<Tensor> factors;  // of the updates
};

class MergedTensor : public ComputedTensor {
 public:
  MergedTensor(std::string_view name, Change change) : name_(name), change_(std::move(change)) {}

  Tensor tensor() const override {
    Tensor tensor = change_.base;
    tensor.name = name_;
    tensor.locator = std::nullopt;
    tensor.computed = this;
    return tensor;
  }

  Content content() const override {
    const Tensor& base = change_.base;
    if (change_.updates.empty() || base.length == 0) return base.content();
    const std::uint64_t rows = base.shape.front();
    Content content;
    content.production(
        merged(base.content(), {base.dtype, rows, base.elements() / rows}, change_.updates));
    return content;
  }

  std::vector<Tensor> inputs() const override {
    std::vector<Tensor> inputs{change_.base};
    if (change_.base.computed != nullptr) inputs = change_.base.computed->inputs();
    inputs.insert(inputs.end(), change_.factors.begin(), change_.factors.end());
    return inputs;
  }

  std::string_view scheme() const override {
    return change_.updates.empty() ? "replaced by an adapter" : "merged with LoRA";
  }


 private:
  std::string_view name_;  // of the list below
  Change change_;
};

class MergedTensors : public ComputedTensors {
 public:
  const ComputedTensor& add(std::string_view name, Change change) {
    return tensors_.emplace_back(name, std::move(change));
  }

 private:
  std::deque<MergedTensor> tensors_;
};

// The factors of a module's update.
struct Pair {
  std::optional<Tensor> a, b;
  bool is_embedding = false;
  unsigned times = 1;
};

class Merger {
 public:
  Merger(const TensorList& list, Sources& sources)
      : list_(list), sources_(sources), targets_(list) {}

  void merge(const std::string& argument) {
    const AdapterChoice choice = adapter_choice(argument);
    const std::string directory(choice.directory);
    if (const std::string last = last_component(directory); last == kConfigName || last == kTensorsName) {
      throw Error(ErrorCode::kAdapter, public_name(directory), "a file of an adapter: name its directory");
    }
    place_ = public_name(child_name(directory, kTensorsName));
    const std::string config_name = child_name(directory, kConfigName);
    const std::string text = read_config(config_name);
    const AdapterConfig config(public_name(config_name), text);
    for (const std::string& line : config.warnings()) warnings_.push_back(line);
    text_ += argument + '\0' + text + '\0';
    adapters_.push_back(load_stored(child_name(directory, kTensorsName), {}, sources_).tensors);

    std::map<std::string, Pair, std::less<>> pairs;
    const TensorList& adapter = adapters_.back();
    for (std::uint32_t i = 0; i < adapter.size(); ++i) sort_in(adapter.tensor(i), pairs);
    for (const auto& [module, pair] : pairs) add(module, pair, config, choice.scale);
    ++adapter_;
  }

  // `list` is that of the constructor. Call it once.
  void finish(TensorList& list) {
    auto tensors = std::make_unique<MergedTensors>();
    std::vector<TensorList::Row> rows;
    for (std::uint32_t i = 0; i < list.size(); ++i) {
      rows.push_back(list.row(i));
      const auto change = changes_.find(i);
      if (change == changes_.end()) continue;
      rows.back().computed = &tensors->add(list.name(i), std::move(change->second));
    }
    std::vector<std::vector<std::string>> hidden_keys;
    for (const Part& part : list.parts()) hidden_keys.push_back(part.hidden_keys);
    for (TensorList& adapter : adapters_) {
      // What an adapter's file says of itself is not said of the checkpoint.
      for (const Part& part : adapter.parts()) hidden_keys.push_back(part.header.metadata.keys());
      list.append(std::move(adapter));
    }
    list.show(std::move(rows), std::move(tensors), std::move(text_), std::move(hidden_keys));
    for (std::string& line : warnings_) list.add_warning(std::move(line));
  }

 private:
  [[noreturn]] void refuse(std::string_view name, const std::string& rule) const {
    throw Error(ErrorCode::kAdapter, place_, in_quotes(name) + ": " + rule);
  }

  std::string read_config(const std::string& name) {
    try {
      return sources_.read_file(name, kMostJson);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kAbsent) throw;
      throw Error(ErrorCode::kAbsent, public_name(name),
                  "no such file: an adapter is a directory that PEFT wrote, with this file and " +
                      std::string(kTensorsName));
    }
  }

  void sort_in(const Tensor& tensor, std::map<std::string, Pair, std::less<>>& pairs) {
    using Kind = AdapterTensor::Kind;
    AdapterTensor meaning = adapter_tensor(tensor.name);
    if (meaning.kind == Kind::kRefused) {
      refuse(tensor.name, "belongs to a kind of adapter that is not supported (" +
                              meaning.subject + "): merge it with PEFT");
    }
    if (meaning.kind == Kind::kReplacement) return replace(meaning.subject, tensor);
    const auto [at, is_new] = pairs.try_emplace(std::move(meaning.subject));
    Pair& pair = at->second;
    const bool is_embedding =
        meaning.kind == Kind::kEmbeddingA || meaning.kind == Kind::kEmbeddingB;
    auto& factor = meaning.kind == Kind::kA || meaning.kind == Kind::kEmbeddingA ? pair.a : pair.b;
    if (factor || (!is_new && pair.is_embedding != is_embedding)) {
      refuse(tensor.name, "the module has this factor twice: name a file with one adapter");
    }
    pair.is_embedding = is_embedding;
    pair.times = meaning.times;
    factor = tensor;
  }

  std::uint32_t target_of(std::string_view name, std::string_view of) const {
    std::optional<std::uint32_t> other;
    const auto number = targets_.find(name, other);
    if (!number) {
      refuse(of, "the base has no tensor " + in_quotes(name) +
                     ": is this the base that the adapter was trained on?");
    }
    if (other) {
      refuse(of, "may mean " + in_quotes(list_.name(*number)) + " or " +
                     in_quotes(list_.name(*other)) + " of the base: rename one side");
    }
    return *number;
  }

  Change& change_of(std::uint32_t number) {
    const auto [at, is_new] = changes_.try_emplace(number);
    if (is_new) at->second.base = list_.tensor(number);
    return at->second;
  }

  void replace(std::string_view name, const Tensor& by) {
    Change& change = change_of(target_of(name, by.name));
    if (change.is_replaced || !change.updates.empty()) {
      refuse(by.name, "another adapter changes this tensor too: merge one of the two at a time");
    }
    change.base = by;
    change.is_replaced = true;
  }

  // The target of a module's factors: its weight, or that of nn.MultiheadAttention.
  std::uint32_t weight_of(const std::string& module, const Tensor& factor) const {
    std::optional<std::uint32_t> other;
    const std::string in_projection = module + ".in_proj_weight";
    if (!targets_.find(module + ".weight", other) && targets_.find(in_projection, other)) {
      return target_of(in_projection, factor.name);
    }
    return target_of(module + ".weight", factor.name);
  }

  void add(const std::string& module, const Pair& pair, const AdapterConfig& config,
           double scale) {
    if (!pair.a || !pair.b) {
      refuse(pair.a ? pair.a->name : pair.b->name, "the other factor is missing");
    }
    const Tensor& a = *pair.a;
    const Tensor& b = *pair.b;
    const AdapterConfig::Scaling scaling = config.scaling_of(module);
    const std::uint64_t rank = scaling.rank;
    const bool are_matrices = a.shape.size() >= 2 && b.shape.size() >= 2 && a.shape[0] == rank &&
                              b.shape[1] == rank &&
                              std::ranges::all_of(b.shape.subspan(2), [](auto n) { return n == 1; });
    if (!are_matrices) {
      refuse(a.name, shape_json(a.shape) + ", and the other factor is " + shape_json(b.shape) +
                         ": the rank is " + std::to_string(rank));
    }
    for (const Tensor& factor : {a, b}) require_floats(factor);

    const std::uint32_t number = weight_of(module, a);
    Change& change = change_of(number);
    const Tensor& weight = change.base;
    require_floats(weight);
    const bool is_transposed = is_stored_transposed(weight, pair, config);
    if (const auto last = last_.find(number); last != last_.end() && last->second == adapter_) {
      refuse(a.name, "the adapter changes " + in_quotes(list_.name(number)) + " twice");
    }
    last_[number] = adapter_;
    change.updates.insert(change.updates.end(), pair.times,
                          {.a = {*a.locator, a.dtype},
                           .b = {*b.locator, b.dtype},
                           .rank = rank,
                           .scale = static_cast<float>(scale * scaling.alpha / scaling.divisor),
                           .is_transposed = is_transposed});
    change.factors.push_back(a);
    change.factors.push_back(b);
  }

  // Whether the weight is the transpose of B·A. Its shape decides; of a square one the adapter does.
  bool is_stored_transposed(const Tensor& weight, const Pair& pair,
                            const AdapterConfig& config) const {
    const std::span<const std::uint64_t> in = pair.a->shape.subspan(1);
    const std::uint64_t out = pair.b->shape[0];
    const std::span<const std::uint64_t> shape = weight.shape;
    const bool is_straight = shape.size() == in.size() + 1 && shape[0] == out &&
                             std::ranges::equal(shape.subspan(1), in);
    const bool is_transposed =
        shape.size() == 2 && in.size() == 1 && shape[0] == in[0] && shape[1] == out;
    if (!is_transposed && (!is_straight || pair.is_embedding)) {
      refuse(pair.a->name, shape_json(pair.a->shape) + ", and the other factor is " +
                               shape_json(pair.b->shape) + ": their product does not fit " +
                               in_quotes(weight.name) + ", which is " + shape_json(shape));
    }
    return is_transposed && (!is_straight || pair.is_embedding || config.fan_in_fan_out());
  }

  void require_floats(const Tensor& tensor) const {
    constexpr DType kTypes[] = {DType::kBF16, DType::kF16, DType::kF32};
    if (std::ranges::find(kTypes, tensor.dtype) != std::end(kTypes)) return;
    refuse(tensor.name, "is " + std::string(dtype_name(tensor.dtype)) +
                            ": BF16, F16 and F32 alone are merged; a quantised base needs "
                            "dequantize=bf16");
  }

  const TensorList& list_;
  Sources& sources_;
  Targets targets_;
  std::string place_;  // of the adapter that is merged
  std::string text_ = std::string(kLoraOption) + "=";
  std::vector<std::string> warnings_;
  std::deque<TensorList> adapters_;
  std::uint32_t adapter_ = 0;                     // number of the one that is merged
  std::map<std::uint32_t, Change> changes_;       // by number
  std::map<std::uint32_t, std::uint32_t> last_;  // the adapter that changed a tensor last
};

}  // namespace

AdapterChoice adapter_choice(std::string_view argument) {
  const std::size_t at = argument.find('@');
  double scale = 1;
  if (at == std::string_view::npos || at == 0) return {1, argument};
  const char* const end = argument.data() + at;
  const auto result = std::from_chars(argument.data(), end, scale);
  if (result.ec != std::errc() || result.ptr != end || !std::isfinite(scale)) return {1, argument};
  return {scale, argument.substr(at + 1)};
}

std::string resolved_adapter(const std::string& argument, Sources& sources) {
  const std::string_view directory = adapter_choice(argument).directory;
  const std::string scale = argument.substr(0, argument.size() - directory.size());
  const std::string name(directory);
  std::error_code error;
  return scale + (is_url(name) ? sources.pinned(name)
                               : std::filesystem::absolute(name, error).string());
}

TensorList merge_adapters(TensorList below, std::span<const std::string> arguments,
                          Sources& sources) {
  Merger merger(below, sources);
  for (const std::string& argument : arguments) merger.merge(argument);
  merger.finish(below);
  return below;
}

}  // namespace stfs
