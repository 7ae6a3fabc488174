#include "core/stored/base_model.h"

#include "core/base/error.h"
#include "core/base/json_text.h"
#include "core/base/text.h"
#include "core/remote/http/url.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <iterator>

namespace stfs {
namespace {

using Json = nlohmann::json;

std::string word_at(const Json& json, const char* key) {
  const auto at = json.find(key);
  return at != json.end() && at->is_string() ? at->get<std::string>() : "";
}

void add_types(const Json& json, std::vector<std::string>& types) {
  if (json.is_object() && !word_at(json, "model_type").empty()) {
    types.push_back(word_at(json, "model_type"));
  }
  for (const Json& value : json) {
    if (value.is_structured()) add_types(value, types);
  }
}

std::string_view behind_dots(std::string_view name) { return name.substr(name.rfind('.') + 1); }

// Returns the last component of the module of a weight or bias, or "" for other tensors.
std::string_view module_in(std::string_view tensor) {
  const std::string_view parameter = behind_dots(tensor);
  if (parameter.size() == tensor.size() || (parameter != "weight" && parameter != "bias"))
    return "";
  return behind_dots(tensor.substr(0, tensor.size() - parameter.size() - 1));
}

template <class Words>
bool contains_word(const Words& words, std::string_view word) {
  return std::ranges::find(words, word) != words.end();
}

// The models of transformers that have Conv1D layers, and Jais, which uses the same class.
constexpr std::string_view kModelsOfConv1d[] = {
    "gpt2", "openai-gpt", "imagegpt", "decision_transformer", "clvp", "clvp_decoder", "jais",
};

}  // namespace

bool is_model_of_conv1d(std::string_view model_type) {
  return std::ranges::find(kModelsOfConv1d, model_type) != std::end(kModelsOfConv1d);
}

bool BaseModel::has_conv1d() const { return std::ranges::any_of(types, is_model_of_conv1d); }

bool BaseModel::has_transposed_experts() const {
  return std::ranges::any_of(types, [](const std::string& type) {
    return type == "gpt_oss" || type == "llama4" || type == "llama4_text";
  });
}

std::string BaseModel::text() const {
  std::string text = architecture + '\0';
  for (const std::string& type : types) text += type + '\0';
  return text + (!ties_embeddings ? "?" : *ties_embeddings ? "tied" : "untied") + '\0';
}

BaseModel read_base_model(const std::string& directory, Sources& sources) {
  BaseModel model;
  std::string text;
  try {
    text = sources.read_file(child_name(directory, "config.json"), kMaxJson);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kAbsent && error.code() != ErrorCode::kHidden) throw;
    return model;
  }
  const Json json =
      Json::parse(is_bounded_json(text) ? without_infinities(text) : "", nullptr, false);
  if (!json.is_object()) return model;
  model.has_config = true;
  const auto architectures = json.find("architectures");
  if (architectures != json.end() && architectures->is_array() && !architectures->empty() &&
      architectures->front().is_string()) {
    model.architecture = architectures->front().get<std::string>();
  }
  add_types(json, model.types);
  for (const char* const part : {"text_config", ""}) {  // the top-level value takes precedence
    const Json& at = *part != '\0' && json.contains(part) ? json[part] : json;
    const auto ties = at.is_object() ? at.find("tie_word_embeddings") : at.end();
    if (ties != at.end() && ties->is_boolean()) model.ties_embeddings = ties->get<bool>();
  }
  return model;
}

bool is_input_embedding(std::string_view tensor) {
  constexpr std::array<std::string_view, 6> kNames{"embed_tokens",   "wte",      "word_embeddings",
                                                   "tok_embeddings", "embed_in", "shared"};
  return tensor.ends_with(".weight") && contains_word(kNames, module_in(tensor));
}

bool is_language_head(std::string_view tensor) {
  constexpr std::array<std::string_view, 2> kNames{"lm_head", "embed_out"};
  return tensor.ends_with(".weight") && contains_word(kNames, module_in(tensor));
}

bool may_change_rows(std::string_view tensor) {
  constexpr std::array<std::string_view, 7> kNames{"wte",    "wpe",        "shared", "score",
                                                   "output", "qa_outputs", "logits"};
  const std::string_view module = module_in(tensor);
  if (contains_word(kNames, module)) return true;
  for (const std::string_view part : {"embed", "head", "classifier"}) {
    if (module.find(part) != std::string_view::npos) return true;
  }
  return tensor.starts_with("classifier.") || tensor.starts_with("score.");
}

}  // namespace stfs
