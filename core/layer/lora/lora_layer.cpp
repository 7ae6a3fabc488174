#include "core/layer/lora/lora_layer.h"

#include "core/base/error.h"
#include "core/base/json_text.h"
#include "core/base/text.h"
#include "core/layer/lora/adapter.h"
#include "core/layer/lora/merged_weight.h"
#include "core/layer/lora/targets.h"
#include "core/layer/quantised/quantization_config.h"
#include "core/remote/http/url.h"
#include "core/stored/base_model.h"
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
// The first file that exists is used.
constexpr const char* kTensorsNames[] = {
    "adapter_model.safetensors", "adapter_model.safetensors.index.json", "adapter_model.bin"};

// The changes that adapters make to a tensor of the list below, or to a tensor that they add.
struct Change {
  Tensor base;  // the tensor of the list below, or an adapter's replacement for it
  bool is_replaced = false;
  // The replacement is from a copy of the module that PEFT made for training (modules_to_save).
  bool is_copy = false;
  bool is_stack = false;  // the first dimension counts experts
  std::vector<LoraUpdate> updates;
  std::vector<Tensor> factors;  // A and B of each update
};

// A tensor that the list below lacks, and the row after which it is sorted.
struct Added {
  std::string name;
  TensorList::Row row;
  // The adapter whose parts the row counts, by its number; nullopt for the parts of the list.
  std::optional<std::uint32_t> adapter;
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
    const std::uint64_t matrices = change_.is_stack ? base.shape[0] : 1;
    const std::uint64_t rows = base.shape[change_.is_stack ? 1 : 0];
    Content content;
    content.production(merged(base.content(),
                              {.dtype = base.dtype,
                               .rows = rows,
                               .columns = base.elements() / matrices / rows,
                               .matrices = matrices},
                              change_.updates));
    return content;
  }

  std::vector<Tensor> inputs() const override {
    std::vector<Tensor> inputs{change_.base};
    if (change_.base.computed != nullptr) inputs = change_.base.computed->inputs();
    inputs.insert(inputs.end(), change_.factors.begin(), change_.factors.end());
    return inputs;
  }

  std::string_view scheme() const override {
    if (!change_.updates.empty()) return "merged with LoRA";
    return change_.is_replaced ? "replaced by an adapter" : "kept by an adapter";
  }

 private:
  std::string name_;
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

// The two factors of a module's update.
struct Pair {
  std::optional<Tensor> a, b;
  bool is_embedding = false;
  unsigned times = 1;
};

class Merger {
 public:
  Merger(const TensorList& list, Sources& sources)
      : list_(list), sources_(sources), targets_(list) {
    if (!list.parts().empty()) model_ = read_base_model(list.parts().front().directory, sources);
    text_ += model_.text();
    find_ends();
  }

  void merge(const std::string& argument) {
    const AdapterChoice choice = adapter_choice(argument);
    const std::string directory(choice.directory);
    if (is_file(directory)) refuse_file(directory);
    const std::string config_name = child_name(directory, kConfigName);
    const std::string text = read_config(directory);
    config_.emplace(public_name(config_name), text);
    for (const std::string& line : config_->warnings()) warnings_.push_back(line);
    text_ += argument + '\0' + text + '\0';
    name_.clear();
    load_tensors(directory);

    std::map<std::string, Pair, std::less<>> pairs;
    const TensorList& adapter = adapters_.back();
    work_ = MatchingWork::for_tensors(adapter.size());
    for (std::uint32_t i = 0; i < adapter.size(); ++i) sort_in(adapter.tensor(i), i, pairs);
    std::map<std::string, std::vector<const Pair*>> of_parameters;  // by the name of the module
    for (const auto& [module, pair] : pairs) {
      require_both(pair);
      std::string owner = module;
      while (owner.ends_with(kNested)) owner.resize(owner.size() - kNested.size());
      if (config_->parameters_of(owner).empty()) {
        add(module, pair, choice.scale);
      } else {
        of_parameters[owner].push_back(&pair);
      }
    }
    for (const auto& [module, all] : of_parameters) add_to_parameters(module, all, choice.scale);
    if (changes_rows_) tokenizer_ = directory;
    changes_rows_ = false;
    ++adapter_;
  }

  // Turns `list`, the list that was given to the constructor, into the result. Call it once.
  void finish(TensorList& list) {
    const bool unties = settle_head();
    auto tensors = std::make_unique<MergedTensors>();
    std::vector<TensorList::Row> rows;
    for (std::uint32_t i = 0; i < list.size(); ++i) {
      rows.push_back(list.row(i));
      const auto change = changes_.find(i);
      if (change == changes_.end()) continue;
      rows.back().computed = &tensors->add(list.name(i), std::move(change->second));
    }
    std::vector<std::uint32_t> first_parts;
    std::vector<std::vector<std::string>> hidden_keys;
    for (const Part& part : list.parts()) hidden_keys.push_back(part.hidden_keys);
    for (TensorList& adapter : adapters_) {
      // Hide the metadata of the adapter's file, because it does not describe the checkpoint.
      for (const Part& part : adapter.parts()) hidden_keys.push_back(part.header.metadata.keys());
      first_parts.push_back(static_cast<std::uint32_t>(list.parts().size()));
      list.append_inputs(std::move(adapter));
    }
    for (std::uint32_t i = 0; i < added_.size(); ++i) {
      TensorList::Row& row = rows.emplace_back(added_[i].row);
      if (added_[i].adapter) row.part += first_parts[*added_[i].adapter];
      row.computed = &tensors->add(added_[i].name, std::move(changes_.at(list_size_ + i)));
    }
    std::ranges::stable_sort(rows, {},
                             [](const auto& row) { return std::pair(row.part, row.record); });
    list.show(std::move(rows), std::move(tensors), std::move(text_), std::move(hidden_keys));
    if (unties) list.beside().unties_embeddings = true;
    if (!tokenizer_.empty()) list.beside().tokenizer = tokenizer_;
    for (std::string& line : warnings_) list.add_warning(std::move(line));
  }

 private:
  static constexpr std::string_view kNested = ".base_layer", kOriginal = ".original_module.";

  [[noreturn]] void refuse(std::string_view name, const std::string& rule) const {
    throw Error(ErrorCode::kAdapter, place_, in_quotes(name) + ": " + rule);
  }

  static bool is_file(const std::string& name) {
    std::error_code error;
    if (!is_url(name)) return std::filesystem::is_regular_file(name, error);
    const std::string last = last_component(public_name(name));
    constexpr std::string_view kEndings[] = {".safetensors", ".gguf", ".bin",
                                             ".pt",          ".npz",  ".json"};
    return std::ranges::any_of(kEndings, [&](auto ending) { return last.ends_with(ending); });
  }

  // Refuses a file, which is not an adapter. Says what the file is, by its name or by the names of
  // its tensors.
  [[noreturn]] void refuse_file(const std::string& path) {
    const std::string last = last_component(public_name(path));
    std::string what = foreign_adapter(last);
    try {
      if (what.empty() && !last.starts_with("adapter_")) {
        const TensorList list = load_stored(path, {}, sources_).tensors;
        for (std::uint32_t i = 0; i < list.size() && what.empty(); ++i) {
          what = foreign_adapter(list.name(i));
        }
      }
    } catch (const Error&) {  // the general message below applies
    }
    if (what.empty()) {
      what = "a file: name the directory that PEFT wrote, with " + std::string(kConfigName) +
             " and " + kTensorsNames[0];
    }
    throw Error(ErrorCode::kAdapter, public_name(path), what);
  }

  std::string read_config(const std::string& directory) {
    const std::string name = child_name(directory, kConfigName);
    try {
      return sources_.read_file(name, kMaxJson);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kAbsent) throw;
      refuse_directory(directory);
      throw Error(ErrorCode::kAbsent, public_name(name),
                  "no such file: an adapter is a directory that PEFT wrote, with this file and " +
                      std::string(kTensorsNames[0]));
    }
  }

  // Throws if an entry of the directory shows what the directory is.
  void refuse_directory(const std::string& directory) {
    std::vector<std::string> entries;
    try {
      entries = sources_.entries_in(directory);
    } catch (const Error&) {  // it does not exist, or the server lists no directories
    }
    std::ranges::sort(entries);
    for (const std::string& entry : entries) {
      std::string what = foreign_adapter(entry);
      std::error_code error;
      if (entry.ends_with('/') && !entry.starts_with('.') && !is_url(directory) &&
          std::filesystem::exists(child_name(directory, entry + kConfigName), error)) {
        what = "has no " + std::string(kConfigName) + ", and its subfolder " + in_quotes(entry) +
               " has: name that";
      }
      if (!what.empty()) throw Error(ErrorCode::kAdapter, public_name(directory), what);
    }
  }

  void load_tensors(const std::string& directory) {
    std::optional<Error> first;
    for (const char* const name : kTensorsNames) {
      place_ = public_name(child_name(directory, name));
      try {
        adapters_.push_back(load_stored(child_name(directory, name), {}, sources_).tensors);
        adapters_.back().sort_names();
        return;
      } catch (const Error& error) {
        if (error.code() != ErrorCode::kAbsent && error.code() != ErrorCode::kHidden) throw;
        if (!first) first = error;
      }
    }
    throw Error(*first);
  }

  // Finds the input embeddings and the head, and whether the model uses one tensor as both.
  void find_ends() {
    std::size_t embeddings = 0;
    for (std::uint32_t i = 0; i < list_.size(); ++i) {
      const std::string_view name = list_.name(i);
      if (is_language_head(name)) head_ = i;
      const bool is_of_bert = name.find("embeddings.word_embeddings") != std::string_view::npos;
      if (!is_input_embedding(name) || is_of_bert || list_.tensor(i).shape.size() != 2) continue;
      embedding_ = i;
      ++embeddings;
    }
    if (embeddings != 1) embedding_.reset();
    const bool is_of_language = model_.architecture.empty() ||
                                model_.architecture.find("LM") != std::string::npos ||
                                model_.architecture.ends_with("ForConditionalGeneration");
    is_tied_ = embedding_ && model_.has_config &&
               model_.ties_embeddings.value_or(!head_ && is_of_language);
  }

  void sort_in(const Tensor& tensor, std::uint32_t number,
               std::map<std::string, Pair, std::less<>>& pairs) {
    using Kind = AdapterTensor::Kind;
    AdapterTensor meaning = adapter_tensor(tensor.name);
    if (meaning.kind == Kind::kRefused) {
      const std::string foreign = foreign_adapter(tensor.name);
      refuse(tensor.name, !foreign.empty()
                              ? "belongs to " + foreign
                              : "belongs to a kind of adapter that is not supported (" +
                                    meaning.subject + "): merge it with PEFT");
    }
    if (tensor.elements() == 0) {
      refuse(tensor.name,
             "is " + shape_json(tensor.shape) +
                 ": a placeholder that DeepSpeed's ZeRO-3 leaves where it has not gathered a "
                 "tensor; make the adapter with zero_to_fp32.py from its checkpoint, or save it "
                 "with stage3_gather_16bit_weights_on_model_save");
    }
    if (name_.empty()) name_ = meaning.adapter;
    if (!meaning.adapter.empty() && meaning.adapter != name_) {
      throw Error(ErrorCode::kAdapter, place_,
                  "has the adapters " + in_quotes(name_) + " and " + in_quotes(meaning.adapter) +
                      ": name a file with one");
    }
    if (meaning.kind == Kind::kReplacement && is_original_of_saved(tensor.name)) return;
    if (meaning.kind == Kind::kReplacement) return replace(meaning.subject, tensor, number);
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

  // Returns true if a tensor is the base's original, which PEFT's ModulesToSaveWrapper keeps beside
  // the copy that it trained.
  bool is_original_of_saved(std::string_view name) const {
    const std::size_t at = name.find(kOriginal);
    if (at == std::string_view::npos) return false;
    constexpr std::string_view kCopies[] = {".modules_to_save.default.", ".modules_to_save.", "."};
    return std::ranges::any_of(kCopies, [&](std::string_view copy) {
      std::string saved(name);
      return adapters_.back().find(saved.replace(at, kOriginal.size(), copy)).has_value();
    });
  }

  void require_both(const Pair& pair) const {
    if (!pair.a || !pair.b) {
      refuse(pair.a ? pair.a->name : pair.b->name, "the other factor is missing");
    }
    for (const Tensor& factor : {*pair.a, *pair.b}) {
      require_floats(factor);
      if (factor.locator) continue;
      refuse(factor.name,
             "does not lie row behind row in its file: save the adapter as safetensors");
    }
  }

  // Returns the number of the tensor that a name means, in the base or among the tensors that
  // adapters add. `of` is the adapter's tensor, for messages.
  std::optional<std::uint32_t> find(std::string_view name, std::string_view of) const {
    const auto added = std::ranges::find(added_, name, &Added::name);
    if (added != added_.end())
      return list_size_ + static_cast<std::uint32_t>(added - added_.begin());
    std::optional<std::uint32_t> other;
    const auto number = targets_.find(name, other);
    if (number && other) {
      refuse(of, "may mean " + in_quotes(list_.name(*number)) + " or " +
                     in_quotes(list_.name(*other)) + " of the base: rename one side");
    }
    return number;
  }

  [[noreturn]] void refuse_target(std::string_view name, std::string_view of) const {
    refuse(of, "the base has no tensor " + in_quotes(name) +
                   ": is this the base that the adapter was trained on?");
  }

  std::uint32_t target_of(const std::string& name, std::string_view of) {
    if (const auto number = find(name, of)) return *number;
    if (!is_language_head(name) || !is_tied_ || head_) refuse_target(name, of);
    // The model uses its embeddings as its head. The adapter's head becomes a tensor of its own,
    // which starts as a copy of the embeddings.
    const std::uint32_t number = add_tensor(name, list_.row(*embedding_), std::nullopt);
    const auto embedding = changes_.find(*embedding_);
    const bool follows =
        embedding != changes_.end() && embedding->second.is_replaced && !embedding->second.is_copy;
    changes_[number].base = follows ? embedding->second.base : list_.tensor(*embedding_);
    return number;
  }

  std::string_view name_of(std::uint32_t number) const {
    return number < list_size_ ? list_.name(number) : added_[number - list_size_].name;
  }

  std::uint32_t add_tensor(std::string_view name, const TensorList::Row& row,
                           std::optional<std::uint32_t> adapter) {
    added_.push_back({std::string(name), row, adapter});
    return list_size_ + static_cast<std::uint32_t>(added_.size() - 1);
  }

  // Returns the tensor that updates are added to.
  Tensor base_of(std::uint32_t number) const {
    const auto at = changes_.find(number);
    return at != changes_.end() ? at->second.base : list_.tensor(number);
  }

  Change& change_of(std::uint32_t number) {
    const auto [at, is_new] = changes_.try_emplace(number);
    if (is_new) at->second.base = list_.tensor(number);
    return at->second;
  }

  void replace(const std::string& name, const Tensor& by, std::uint32_t number_in_adapter) {
    if (type_info(by.dtype).kind != TypeKind::kFloat) {
      refuse(by.name, "is " + std::string(dtype_name(by.dtype)) +
                          ": a floating type is expected of what replaces a tensor");
    }
    const bool is_head = is_language_head(name) && is_tied_ && !head_;
    std::optional<std::uint32_t> number = find(name, by.name);
    if (number) {
      require_shape(by, base_of(*number));
    } else if (is_head ||
               (config_->saves_module_of(name) && name.find(kOriginal) == std::string::npos)) {
      if (is_head) require_shape(by, list_.tensor(*embedding_));
      number = add_tensor(name, adapters_.back().row(number_in_adapter), adapter_);
      changes_[*number].base = by;
      if (!is_head) tell_of_head(name, by);
    } else {
      refuse_target(name, by.name);
    }
    Change& change = change_of(*number);
    if (change.is_replaced || !change.updates.empty()) {
      refuse(by.name, "another adapter changes this tensor too: merge one of the two at a time");
    }
    const bool changes_rows = change.base.shape[0] != by.shape[0];
    changes_rows_ = changes_rows_ || (changes_rows && is_input_embedding(name_of(*number)));
    change.base = by;
    change.is_replaced = true;
    change.is_copy = config_->saves_module_of(name) && !config_->ties_weights();
    if (change.is_copy) note_change(*number);
  }

  void require_shape(const Tensor& by, const Tensor& base) const {
    const std::size_t first = may_change_rows(base.name) && !by.shape.empty() ? 1 : 0;
    if (by.shape.size() == base.shape.size() &&
        std::ranges::equal(by.shape.subspan(first), base.shape.subspan(first))) {
      return;
    }
    refuse(by.name, "is " + shape_json(by.shape) + ", and " + in_quotes(base.name) +
                        " of the base is " + shape_json(base.shape) +
                        ": only the first dimension of embeddings and heads may differ; is this "
                        "the base that the adapter was trained on?");
  }

  // Warns that the head is new, because a model with another head is of another class.
  void tell_of_head(std::string_view name, const Tensor& by) {
    if (!model_.has_config || !name.ends_with(".weight")) return;
    warnings_.push_back(printable(place_) + ": " + in_quotes(name) + " " + shape_json(by.shape) +
                        ": the base has no such tensor, it is added: \"architectures\" of "
                        "config.json names " +
                        in_quotes(model_.architecture) +
                        ": name the class that has it, and its labels in \"id2label\"");
  }

  // Returns the target of a module's factors: its weight, or the in_proj_weight of
  // nn.MultiheadAttention.
  std::uint32_t weight_of(const std::string& module, const Tensor& factor) {
    std::optional<std::uint32_t> other;
    const std::string in_projection = module + ".in_proj_weight";
    if (!targets_.find(module + ".weight", other) && targets_.find(in_projection, other)) {
      return target_of(in_projection, factor.name);
    }
    return target_of(module + ".weight", factor.name);
  }

  [[noreturn]] void refuse_factors(const Pair& pair, const std::string& rule) const {
    refuse(pair.a->name, shape_json(pair.a->shape) + ", and the other factor is " +
                             shape_json(pair.b->shape) + ": " + rule);
  }

  void add(const std::string& module, const Pair& pair, double scale) {
    const AdapterConfig::Scaling scaling = config_->scaling_of(module, work_);
    const std::uint64_t rank = scaling.rank;
    const Tensor &a = *pair.a, &b = *pair.b;
    const bool are_matrices =
        a.shape.size() >= 2 && b.shape.size() >= 2 && a.shape[0] == rank && b.shape[1] == rank &&
        std::ranges::all_of(b.shape.subspan(2), [](auto n) { return n == 1; });
    const std::uint32_t number = weight_of(module, a);
    if (!are_matrices) refuse_factors(pair, "the rank is " + std::to_string(rank));
    require_floats(base_of(number));
    add_update(number, pair, scaling, scale, is_stored_transposed(number, pair), false);
  }

  void add_update(std::uint32_t number, const Pair& pair, const AdapterConfig::Scaling& scaling,
                  double scale, bool is_transposed, bool is_stack) {
    Change& change = change_of(number);
    const auto last = last_.find(number);
    const bool is_twice = last != last_.end() && last->second == adapter_;
    if (is_twice || (!change.updates.empty() && change.is_stack != is_stack)) {
      refuse(pair.a->name, "the adapter changes " + in_quotes(name_of(number)) + " twice");
    }
    last_[number] = adapter_;
    note_change(number);
    change.is_stack = is_stack;
    change.updates.insert(change.updates.end(), pair.times,
                          {.a = {*pair.a->locator, pair.a->dtype},
                           .b = {*pair.b->locator, pair.b->dtype},
                           .rank = scaling.rank,
                           .scale = static_cast<float>(scale * scaling.alpha / scaling.divisor),
                           .is_transposed = is_transposed});
    change.factors.push_back(*pair.a);
    change.factors.push_back(*pair.b);
  }

  void note_change(std::uint32_t number) {
    const bool is_alone = !config_->ties_weights() && config_->is_of_language_model();
    if (number == embedding_ && is_alone) diverges_ = true;
  }

  // Returns true if the weight is stored as the transpose of B·A. Its shape shows this, except for
  // a square weight, where the class of its module decides.
  bool is_stored_transposed(std::uint32_t number, const Pair& pair) {
    const Tensor weight = base_of(number);
    const std::span<const std::uint64_t> in = pair.a->shape.subspan(1);
    const std::uint64_t out = pair.b->shape[0];
    const std::span<const std::uint64_t> shape = weight.shape;
    const bool is_straight = shape.size() == in.size() + 1 && shape[0] == out &&
                             std::ranges::equal(shape.subspan(1), in);
    const bool is_transposed =
        shape.size() == 2 && in.size() == 1 && shape[0] == in[0] && shape[1] == out;
    if (!is_transposed && (!is_straight || pair.is_embedding)) {
      refuse_factors(pair, "their product does not fit " + in_quotes(name_of(number)) +
                               ", which is " + shape_json(shape));
    }
    if (!is_transposed || !is_straight || pair.is_embedding) return is_transposed;
    const std::optional<bool> is_conv1d = has_conv1d(name_of(number), shape[0]);
    if (!is_conv1d) {
      refuse(pair.a->name, in_quotes(name_of(number)) + " is square, and " +
                               (model_.has_config ? "\"model_type\" is not in config.json"
                                                  : "there is no config.json beside the base") +
                               ": nothing tells whether its module is a Conv1D, whose weight is "
                               "transposed; put the model's config.json there");
    }
    return *is_conv1d;
  }

  // Returns whether a square weight belongs to a Conv1D, as in GPT-2 and related models. Returns
  // nullopt if nothing shows it.
  std::optional<bool> has_conv1d(std::string_view name, std::uint64_t size) const {
    const std::string_view module = name.substr(0, name.rfind('.'));
    if (!has_name_of_conv1d(module)) {
      if (model_.types.empty() && config_->fan_in_fan_out()) return std::nullopt;
      return false;
    }
    // Compare with the shapes of other modules in the layer: the rows of a Conv1D's weight are its
    // inputs.
    std::size_t layer = name.find_last_of("0123456789");
    while (layer != std::string_view::npos && layer + 1 < name.size() && name[layer + 1] != '.') {
      layer = layer == 0 ? std::string_view::npos : name.find_last_of("0123456789", layer - 1);
    }
    if (layer != std::string_view::npos) {
      const std::string before(name.substr(0, layer + 2));
      for (const char* const other :
           {"attn.c_attn.weight", "mlp.c_fc.weight", "crossattention.c_attn.weight"}) {
        const auto number = list_.find(before + other);
        if (!number) continue;
        const auto shape = list_.tensor(*number).shape;
        if (shape.size() != 2 || shape[0] == shape[1]) continue;
        if (shape[0] == size || shape[1] == size) return shape[0] == size;
      }
    }
    if (model_.types.empty()) return std::nullopt;
    return model_.has_conv1d();
  }

  // Adds the updates of a module's parameters, such as stacks of experts. The names in the file do
  // not say which parameter a pair belongs to, so the shapes must show it.
  void add_to_parameters(const std::string& module, std::vector<const Pair*> pairs, double scale) {
    struct Parameter {
      std::string name;
      std::uint32_t number;
    };
    std::vector<Parameter> parameters;
    for (std::string& name : config_->parameters_of(module)) {
      const std::uint32_t number = target_of(name, pairs.front()->a->name);
      parameters.push_back({std::move(name), number});
    }
    while (!pairs.empty()) {
      // Find a pair that fits exactly one parameter.
      std::size_t at = 0, fitting = parameters.size(), fits = 0;
      for (; at < pairs.size() && fits != 1; ++at) {
        fits = 0;
        for (std::size_t i = 0; i < parameters.size(); ++i) {
          const auto orientation =
              orientation_of(parameters[i].name, parameters[i].number, *pairs[at]);
          if (!orientation.fits_straight && !orientation.fits_transposed) continue;
          fitting = i;
          ++fits;
        }
        if (fits == 0) {
          refuse_factors(*pairs[at], "they fit no parameter of " + in_quotes(module) +
                                         " that \"target_parameters\" names, with the rank " +
                                         std::to_string(config_->scaling_of(module, work_).rank));
        }
      }
      if (fits != 1) {
        refuse_factors(*pairs.front(), "they fit several parameters of " + in_quotes(module) +
                                           ", and nothing tells which: merge it with PEFT");
      }
      const Pair& pair = *pairs[at - 1];
      const Parameter& parameter = parameters[fitting];
      const Orientation fit = orientation_of(parameter.name, parameter.number, pair);
      bool is_transposed = fit.fits_transposed;
      if (fit.fits_straight && fit.fits_transposed && !model_.has_transposed_experts()) {
        refuse_factors(pair,
                       in_quotes(name_of(parameter.number)) +
                           " has square matrices, and nothing tells whether they are stored "
                           "transposed (those of gpt_oss and llama4 are): merge it with PEFT");
      }
      if (!fit.is_stack) is_transposed = is_stored_transposed(parameter.number, pair);
      require_floats(base_of(parameter.number));
      add_update(parameter.number, pair, config_->scaling_of(parameter.name, work_), scale,
                 is_transposed, fit.is_stack);
      pairs.erase(pairs.begin() + static_cast<std::ptrdiff_t>(at - 1));
      parameters.erase(parameters.begin() + static_cast<std::ptrdiff_t>(fitting));
    }
  }

  struct Orientation {
    bool fits_straight = false, fits_transposed = false, is_stack = false;
  };
  // Returns how a pair of factors fits a parameter of two dimensions, or of three (a stack of
  // matrices). Nothing is set if it does not fit.
  Orientation orientation_of(const std::string& name, std::uint32_t number, const Pair& pair) {
    const std::span<const std::uint64_t> shape = base_of(number).shape;
    const std::span<const std::uint64_t> a = pair.a->shape, b = pair.b->shape;
    if ((shape.size() != 2 && shape.size() != 3) || a.size() != 2 || b.size() != 2) return {};
    Orientation fit{.is_stack = shape.size() == 3};
    const std::uint64_t matrices = fit.is_stack ? shape[0] : 1;
    std::uint64_t ranks = 0;
    if (__builtin_mul_overflow(matrices, config_->scaling_of(name, work_).rank, &ranks) ||
        a[0] != ranks || b[1] != ranks) {
      return {};
    }
    const std::span<const std::uint64_t> matrix = shape.last(2);
    fit.fits_straight = matrix[0] == b[0] && matrix[1] == a[1];
    fit.fits_transposed = matrix[0] == a[1] && matrix[1] == b[0];
    return fit;
  }

  // Handles a model that uses its embeddings as its head. If PEFT trained one of the two and not
  // the other, they become two tensors. Returns whether they do.
  bool settle_head() {
    const auto embedding = embedding_ ? changes_.find(*embedding_) : changes_.end();
    const bool has_changed = embedding != changes_.end();
    if (!is_tied_) {
      if (has_changed && !head_ && !model_.has_config) {
        warnings_.push_back(printable(place_) + ": " + in_quotes(list_.name(*embedding_)) +
                            ": changed, and no config.json beside the base tells whether the head "
                            "is this tensor too: the head keeps its values in PEFT alone");
      }
      return false;
    }
    const auto is_head = [](const Added& added) { return is_language_head(added.name); };
    if (head_ ? changes_.contains(*head_) : std::ranges::any_of(added_, is_head)) return true;
    if (!has_changed) return false;
    if (!diverges_) {
      const Change same = embedding->second;
      if (head_) changes_[*head_] = same;
      return false;
    }
    const Tensor before = list_.tensor(*embedding_);
    if (before.shape[0] != embedding->second.base.shape[0] ||
        before.name.ends_with("shared.weight") ||
        before.name.find("decoder.") != std::string_view::npos) {
      refuse(before.name,
             "the head is this tensor too (tie_word_embeddings), and what the adapter "
             "makes of one is not told for the other: merge it with PEFT");
    }
    if (!head_) {
      const bool is_inside = before.name.starts_with("language_model.model.");
      const std::string name = std::string(is_inside ? "language_model." : "") + "lm_head.weight";
      changes_[add_tensor(name, list_.row(*embedding_), std::nullopt)].base = before;
    }
    return true;
  }

  void require_floats(const Tensor& tensor) const {
    constexpr DType kTypes[] = {DType::kBF16, DType::kF16, DType::kF32};
    if (std::ranges::find(kTypes, tensor.dtype) != std::end(kTypes)) return;
    refuse(tensor.name, "is " + std::string(dtype_name(tensor.dtype)) +
                            ": BF16, F16 and F32 alone are merged; a quantised base needs "
                            "dequantize=bf16");
  }

  const TensorList& list_;
  const std::uint32_t list_size_ = list_.size();
  Sources& sources_;
  Targets targets_;
  BaseModel model_;
  // The input embeddings, if exactly one tensor has them; the head.
  std::optional<std::uint32_t> embedding_, head_;
  bool is_tied_ = false;                 // the model uses one tensor as embeddings and head
  bool diverges_ = false;                // the embeddings were changed without the head
  std::optional<AdapterConfig> config_;  // the configuration of the adapter that is merged
  MatchingWork work_;                    // the work of matching its patterns
  std::string place_, name_;             // the file and the name of that adapter
  bool changes_rows_ = false;            // that adapter changes the number of embeddings
  std::string tokenizer_;                // the directory of the last adapter that did so
  std::string text_ = std::string(kLoraOption) + "=";
  std::vector<std::string> warnings_;
  std::deque<TensorList> adapters_;
  std::uint32_t adapter_ = 0;                // the number of the adapter that is being merged
  std::map<std::uint32_t, Change> changes_;  // by tensor number; added_ follows the list
  std::deque<Added> added_;
  // The number of the adapter that last changed a tensor.
  std::map<std::uint32_t, std::uint32_t> last_;
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
  return scale +
         (is_url(name) ? sources.pinned(name) : std::filesystem::absolute(name, error).string());
}

TensorList merge_adapters(TensorList below, std::span<const std::string> arguments,
                          Sources& sources) {
  Merger merger(below, sources);
  for (const std::string& argument : arguments) merger.merge(argument);
  merger.finish(below);
  return below;
}

}  // namespace stfs
