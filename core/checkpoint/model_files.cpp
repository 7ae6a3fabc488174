#include "core/checkpoint/model_files.h"

#include "core/base/error.h"
#include "core/base/json_text.h"
#include "core/base/posix.h"
#include "core/base/text.h"
#include "core/checkpoint/config_facts.h"
#include "core/remote/http/url.h"
#include "core/source/local_file.h"

#include <fcntl.h>
#include <fnmatch.h>
#include <nlohmann/json.hpp>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <map>
#include <set>
#include <system_error>
#include <utility>

namespace stfs {
namespace {

using Json = nlohmann::json;

constexpr std::uint64_t kMaxConfig = 16 << 20;  // bytes of a config.json
constexpr std::size_t kMaxFiles = 256;          // a limit because each has a file descriptor
constexpr std::size_t kLongestName = 255;       // NAME_MAX

// Patterns of fnmatch(3). REFERENCE lists them.
constexpr auto kPatterns = std::to_array<const char*>({"config.json",
                                                       "generation_config.json",
                                                       "tokenizer*",
                                                       "vocab*",
                                                       "merges.txt",
                                                       "chat_template.*",
                                                       "special_tokens_map.json",
                                                       "added_tokens.json",
                                                       "*processor_config.json",
                                                       "*.tiktoken",
                                                       "tiktoken.model",
                                                       "spiece.model",
                                                       "sentencepiece*",
                                                       "tekken.json",
                                                       "modules.json",
                                                       "sentence_bert_config.json",
                                                       "config_sentence_transformers.json",
                                                       "*.py",
                                                       "README*",
                                                       "LICENSE*"});
// Files that only describe the quantisation.
constexpr auto kOfQuantisation = std::to_array<std::string_view>(
    {"hf_quant_config.json", "quantize_config.json", "quant_config.json"});
// Files with these endings are weights, whatever the beginning of their names.
constexpr auto kEndingsOfWeights = std::to_array<std::string_view>(
    {".safetensors", ".safetensors.index.json", ".gguf", ".bin", ".pt", ".pth"});
// The names to try if the server does not list the directory.
constexpr auto kUsualNames = std::to_array<const char*>(
    {"README.md", "LICENSE", "added_tokens.json", "chat_template.jinja", "generation_config.json",
     "hf_quant_config.json", "merges.txt", "preprocessor_config.json", "processor_config.json",
     "quantize_config.json", "special_tokens_map.json", "tokenizer.json", "tokenizer.model",
     "tokenizer_config.json", "vocab.json", "vocab.txt"});

bool is_of_quantisation(std::string_view name) {
  return std::ranges::find(kOfQuantisation, name) != kOfQuantisation.end();
}

// Returns true for a URL, and for a local path that resolves to a regular file.
bool is_regular(const std::string& path) {
  std::error_code error;
  return is_url(path) || std::filesystem::is_regular_file(path, error);
}

std::string text_of(const Source& source) {
  if (source.size() > kMaxConfig) {
    throw Error(ErrorCode::kUnreadable, source.path(),
                "larger than the limit of " + std::to_string(kMaxConfig) + " bytes");
  }
  std::string text(source.size(), '\0');
  if (const int error = source.read(std::as_writable_bytes(std::span(text)), 0)) {
    throw_read_failure(source, source.path(), "", error);
  }
  return text;
}

std::string_view type_word(DType type) {
  return type == DType::kBF16  ? "bfloat16"
         : type == DType::kF16 ? "float16"
         : type == DType::kF64 ? "float64"
                               : "float32";
}

// Edits a text that must be valid JSON. Parts that it does not change stay byte for byte.
class ConfigEditor {
 public:
  explicit ConfigEditor(const ConfigChange& change) : change_(change) {
    if (change.type) values_["torch_dtype"] = "\"" + std::string(type_word(*change.type)) + "\"";
    if (change.vocabulary) values_["vocab_size"] = std::to_string(*change.vocabulary);
    if (change.ties_embeddings) {
      values_["tie_word_embeddings"] = *change.ties_embeddings ? "true" : "false";
    }
  }

  // Returns the edited text of the object whose "{" is at `at`, and sets `at` to the position after
  // its "}". `is_of_model` is true for the top-level object and for text_config.
  std::string object(std::string_view text, std::size_t& at, unsigned depth, bool is_of_model) {
    std::string out = "{";
    bool is_first = true;
    std::set<std::string_view> there;  // the keys of values_ that the object has
    std::string_view indent;           // the whitespace before the first key
    ++at;
    for (bool is_open = true; is_open;) {
      const std::size_t begin = at;
      skip_space(text, at);
      if (text[at] == '}') {
        add_missing(out, is_first, "", depth, is_of_model, there);
        out += text.substr(begin, at++ - begin);
        break;
      }
      if (indent.data() == nullptr) indent = text.substr(begin, at - begin);
      const std::size_t key_begin = at;
      skip_value(text, at);
      const auto key = Json::parse(text.substr(key_begin, at - key_begin)).get<std::string>();
      skip_space(text, at);
      ++at;  // the colon
      skip_space(text, at);
      const std::string_view before = text.substr(begin, at - begin);
      const auto set =
          is_of_model ? values_.find(key == "dtype" ? "torch_dtype" : key) : values_.end();
      if (set != values_.end()) there.insert(set->first);
      has_text_ = has_text_ || (depth == 0 && key == "text_config" && text[at] == '{');
      has_vocabulary_ = has_vocabulary_ || (is_of_model && key == "vocab_size");
      const std::string value = edited_value(text, at, key, depth, set);
      const std::size_t end = at;
      skip_space(text, at);
      if (!describes_quantisation(key, is_of_model)) {
        if (!is_first) out += ',';
        out.append(before).append(value);
        is_first = false;
      }
      is_open = text[at++] == ',';
      if (is_open) continue;
      add_missing(out, is_first, indent, depth, is_of_model, there);
      out += text.substr(end, at - 1 - end);
    }
    return out + '}';
  }

  // Does the same for the top-level object.
  std::string document(std::string_view text, std::size_t& at) {
    const std::size_t begin = at;
    std::string out = object(text, at, 0, true);
    if (!change_.vocabulary || has_vocabulary_) return out;
    adds_vocabulary_ = true;  // neither object has vocab_size, so begin again and add it
    at = begin;
    return object(text, at, 0, true);
  }

  static void skip_space(std::string_view text, std::size_t& at) {
    at = std::min(text.find_first_not_of(" \t\r\n", at), text.size());
  }

 private:
  static constexpr unsigned kDeepest = 8;  // nested configurations; deeper ones are not edited

  using Values = std::map<std::string, std::string, std::less<>>;  // new JSON values by key

  bool describes_quantisation(std::string_view key, bool is_of_model) const {
    if (!change_.is_dequantized) return false;
    if (key == "quantization_config" || key == "compression_config") return true;
    return is_of_model && (key == "quantization" || key == "expert_dtype");
  }

  void add_missing(std::string& out, bool is_first, std::string_view indent, unsigned depth,
                   bool is_of_model, const std::set<std::string_view>& there) const {
    for (const auto& [key, value] : values_) {
      if (!is_of_model || there.contains(key) || !is_added(key, depth)) continue;
      out.append(is_first ? "" : ",").append(indent).append("\"").append(key);
      out.append("\": ").append(value);
      is_first = false;
    }
  }

  // Returns true if a missing key is added to the object at this depth: torch_dtype to the
  // top-level object; vocab_size to text_config, or to the top-level object if there is no
  // text_config; tie_word_embeddings to both, because programs look in both.
  bool is_added(std::string_view key, unsigned depth) const {
    if (key == "torch_dtype") return depth == 0;
    if (key == "vocab_size") return adds_vocabulary_ && (depth == 1) == has_text_;
    return true;
  }

  std::string edited_value(std::string_view text, std::size_t& at, std::string_view key,
                           unsigned depth, Values::const_iterator set) {
    const std::size_t begin = at;
    if (text[at] == '{' && depth < kDeepest && set == values_.end()) {
      const bool is_text = depth == 0 && key == "text_config";
      return object(text, at, depth + 1, is_text);
    }
    skip_value(text, at);
    if (set != values_.end()) return set->second;
    return std::string(text.substr(begin, at - begin));
  }

  static void skip_value(std::string_view text, std::size_t& at) {
    std::size_t open = 0;
    do {
      const char c = text[at++];
      if (c == '"') {
        for (; text[at] != '"'; ++at) at += text[at] == '\\' ? 1 : 0;
        ++at;
      } else if (c == '{' || c == '[') {
        ++open;
      } else if (c == '}' || c == ']') {
        --open;
      } else if (open == 0) {  // a number, true, false or null
        at = std::min(text.find_first_of(",}] \t\r\n", at), text.size());
      }
    } while (open > 0);
  }

  ConfigChange change_;
  Values values_;
  bool has_text_ = false, has_vocabulary_ = false, adds_vocabulary_ = false;
};

// Returns the path of an open file, without symbolic links (proc_pid_fd(5)).
std::filesystem::path path_of(const UniqueFd& fd, const std::string& place) {
  std::error_code error;
  auto path = std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(fd.get()), error);
  if (error) throw_errno(ErrorCode::kUnreadable, place, "/proc/self/fd", error.value());
  return path;
}

bool lies_in(const std::filesystem::path& path, const std::filesystem::path& directory) {
  return std::ranges::mismatch(directory, path).in1 == directory.end();
}

// A local directory. open() follows the links of a file once, to get an O_PATH descriptor. It
// checks the file through this descriptor and then opens the file through it, so that no process
// can replace the file between the check and the opening.
class ModelDirectory {
 public:
  ModelDirectory(const std::string& name, bool others_may_read)
      : name_(name), others_may_read_(others_may_read) {
    const char* const opened = name.empty() ? "." : name.c_str();
    fd_ = UniqueFd(::open(opened, O_PATH | O_DIRECTORY | O_CLOEXEC));
    if (!fd_) throw_errno(ErrorCode::kUnreadable, name, "", errno);
    path_ = path_of(fd_, name);
    // Find the Hub's cache, if the path is models--ORG--NAME/snapshots/COMMIT or a directory in it.
    for (std::filesystem::path at = path_; at.has_relative_path(); at = at.parent_path()) {
      const std::filesystem::path cached = at.parent_path().parent_path();
      if (at.parent_path().filename() == "snapshots" &&
          cached.filename().native().starts_with("models--")) {
        blobs_ = cached / "blobs";
      }
    }
  }

  // Throws Error if the file cannot be opened or must not be shown.
  std::unique_ptr<const Source> open(const std::string& name) const {
    const std::string place = child_name(name_, name);
    const UniqueFd found(::openat(fd_.get(), name.c_str(), O_PATH | O_CLOEXEC));
    if (!found) throw_unreadable(place, errno);
    const struct stat status = stat_of(found.get(), place);
    if (!S_ISREG(status.st_mode)) throw Error(ErrorCode::kHidden, place, "not a regular file");
    const std::filesystem::path target = path_of(found, place);
    if (target != path_ / name) check_link(place, target, status);
    const std::string opened = "/proc/self/fd/" + std::to_string(found.get());
    UniqueFd fd(::open(opened.c_str(), O_RDONLY | O_CLOEXEC));
    if (!fd) throw_unreadable(place, errno);
    return std::make_unique<const LocalFile>(target.native(), std::move(fd));
  }

 private:
  void check_link(const std::string& place, const std::filesystem::path& target,
                  const struct stat& status) const {
    const bool is_blob = !blobs_.empty() && lies_in(target, blobs_);
    if (!is_blob && !lies_in(target, path_)) {
      throw Error(ErrorCode::kUnreadable, place,
                  "a symbolic link to " + in_quotes(target.native()) +
                      ", which is not in its directory: copy the file there");
    }
    if (!others_may_read_) return;
    bool may_read = (status.st_mode & S_IROTH) != 0;
    const std::filesystem::path top = is_blob ? blobs_.parent_path() : path_;
    for (std::filesystem::path at = target.parent_path(); at != top; at = at.parent_path()) {
      struct stat entered {};
      may_read = may_read && ::lstat(at.c_str(), &entered) == 0 && (entered.st_mode & S_IXOTH) != 0;
    }
    if (may_read) return;
    throw Error(
        ErrorCode::kUnreadable, place,
        "a symbolic link to " + in_quotes(target.native()) +
            ", which other users may not read, although they may read this mount: copy the file "
            "there, or change its mode");
  }

  std::string name_;
  bool others_may_read_;
  UniqueFd fd_;
  std::filesystem::path path_;   // without symbolic links
  std::filesystem::path blobs_;  // `blobs` of the Hub's cache that contains it; empty if none does
};

std::string warning_of(const Error& error) {
  return std::string(error.what()) + " (.stfs/model lacks this file)";
}

// Opens `names` in a local directory, notes in `sources` that each was read, and warns about files
// that exist but cannot be shown.
void open_local_into(ModelFiles& out, const std::string& directory,
                     const std::vector<std::string>& names, bool others_may_read,
                     Sources& sources) {
  std::optional<const ModelDirectory> files;
  for (const std::string& name : names) {
    try {
      if (!files) files.emplace(directory, others_may_read);
      out.files.push_back({name, files->open(name)});
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kAbsent || error.code() == ErrorCode::kHidden) continue;
      out.warnings.push_back(warning_of(error));
      continue;
    }
    sources.note_read(out.files.back().source->path());
  }
}

// Opens `names`, and warns about files that cannot be opened. If the names were not listed but
// guessed, does not warn about files that may be absent.
void open_into(ModelFiles& out, const std::string& directory, const std::vector<std::string>& names,
               bool is_listed, Sources& sources) {
  std::vector<std::string> paths;
  paths.reserve(names.size());
  for (const std::string& name : names) paths.push_back(child_name(directory, name));
  std::vector<Sources::Opened> opened = sources.open_all(paths, Sources::When::kLater);
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (!opened[i].error) {
      out.files.push_back({names[i], std::move(opened[i].source)});
    } else if (opened[i].error->code() == ErrorCode::kUsage) {
      throw Error(*opened[i].error);  // the command writes to this file
    } else if (opened[i].error->code() != ErrorCode::kAbsent &&
               (is_listed || opened[i].error->code() != ErrorCode::kHidden)) {
      out.warnings.push_back(warning_of(*opened[i].error));
    }
  }
}

bool is_of_tokenizer(std::string_view name) {
  constexpr auto kOfTokenizer = std::to_array<const char*>(
      {"tokenizer*", "vocab*", "merges.txt", "special_tokens_map.json", "added_tokens.json",
       "*.tiktoken", "tiktoken.model", "spiece.model", "sentencepiece*", "tekken.json",
       "chat_template.*"});
  const std::string text(name);
  return std::ranges::any_of(kOfTokenizer, [&](const char* pattern) {
    return is_model_file(name) && ::fnmatch(pattern, text.c_str(), FNM_PERIOD) == 0;
  });
}

// Replaces the files of the tokenizer with the files of another directory's tokenizer. Changes
// nothing if that directory has no vocabulary.
void take_tokenizer(ModelFiles& out, const std::string& directory, bool others_may_read,
                    Sources& sources) {
  ModelFiles own;
  std::optional<std::vector<std::string>> names;
  if (!is_url(directory) || scheme_of(directory) == "hf") names = sources.names_in(directory);
  std::vector<std::string> wanted;
  const auto want = [&](const std::string& name) {
    if (is_of_tokenizer(name) && name.size() <= kLongestName) wanted.push_back(name);
  };
  if (names) {
    std::ranges::for_each(*names, want);
  } else {
    std::ranges::for_each(kUsualNames, want);
  }
  wanted.resize(std::min(wanted.size(), kMaxFiles));
  if (is_url(directory)) {
    open_into(own, directory, wanted, names.has_value(), sources);
  } else {
    open_local_into(own, directory, wanted, others_may_read, sources);
  }
  std::ranges::move(own.warnings, std::back_inserter(out.warnings));
  const auto has_vocabulary = [](const ModelFile& file) {
    return file.name != "tokenizer_config.json" && !file.name.starts_with("chat_template") &&
           file.name != "special_tokens_map.json" && file.name != "added_tokens.json";
  };
  if (std::ranges::none_of(own.files, has_vocabulary)) return;
  std::erase_if(out.files, [](const ModelFile& file) { return is_of_tokenizer(file.name); });
  std::ranges::move(own.files, std::back_inserter(out.files));
  std::ranges::sort(out.files, {}, &ModelFile::name);
}

}  // namespace

bool is_model_file(std::string_view name) {
  const std::string text(name);
  if (is_of_quantisation(name)) return true;
  const auto ends = [&](std::string_view ending) { return name.ends_with(ending); };
  if (std::ranges::any_of(kEndingsOfWeights, ends)) return false;
  return std::ranges::any_of(kPatterns, [&](const char* pattern) {
    return ::fnmatch(pattern, text.c_str(), FNM_PERIOD) == 0;
  });
}

bool has_type_word(DType type) {
  constexpr DType kTypes[] = {DType::kF64, DType::kF32, DType::kF16, DType::kBF16};
  return std::ranges::find(kTypes, type) != std::end(kTypes);
}

std::optional<std::string> changed_config(std::string_view config, const ConfigChange& change) {
  // Check the JSON without a tree of values, which could take a hundred times the memory of the
  // text.
  std::size_t at = config.find_first_not_of("\xEF\xBB\xBF \t\r\n");
  if (at == std::string_view::npos || config[at] != '{' ||
      !Json::accept(without_infinities(config))) {
    return std::nullopt;
  }
  std::string text(config.substr(0, at));
  text += ConfigEditor(change).document(config, at);
  return text.append(config.substr(at));
}

ModelFiles open_model_files(const std::string& directory,
                            const std::optional<std::vector<std::string>>& names,
                            const ConfigFacts& facts, bool others_may_read, Sources& sources) {
  const bool is_dequantized = facts.dequantized().has_value();
  ModelFiles out;
  std::vector<std::string> wanted;
  if (names) {
    for (const std::string& name : *names) {
      if (!is_model_file(name) || name.size() > kLongestName) continue;
      if (is_dequantized && is_of_quantisation(name)) continue;
      if (is_regular(child_name(directory, name))) wanted.push_back(name);
    }
    std::ranges::sort(wanted);
    if (std::ranges::find(wanted, kModelConfig) == wanted.end()) return out;
    if (wanted.size() > kMaxFiles) {
      out.warnings.push_back(printable(public_name(directory)) +
                             ": there is no .stfs/model, because " + std::to_string(wanted.size()) +
                             " files for loaders exceed the limit of " + std::to_string(kMaxFiles));
      return out;
    }
    if (is_url(directory)) {
      open_into(out, directory, wanted, true, sources);
    } else {
      open_local_into(out, directory, wanted, others_may_read, sources);
    }
  } else {
    open_into(out, directory, {std::string(kModelConfig)}, false, sources);
    if (out.files.empty()) return out;
    for (const char* const name : kUsualNames) {
      if (!is_dequantized || !is_of_quantisation(name)) wanted.emplace_back(name);
    }
    open_into(out, directory, wanted, false, sources);
    std::ranges::sort(out.files, {}, &ModelFile::name);
  }
  if (!facts.tokenizer().empty()) {
    take_tokenizer(out, facts.tokenizer(), others_may_read, sources);
  }
  const auto config = std::ranges::find(out.files, kModelConfig, &ModelFile::name);
  if (config != out.files.end() && !facts.may_change()) return out;
  try {
    if (config != out.files.end()) {
      const std::string text = text_of(*config->source);
      const ConfigChange change = facts.change(text, config->source->path(), out.warnings);
      config->text = changed_config(text, change);
      if (config->text) return out;
      out.warnings.push_back(printable(config->source->path()) +
                             ": not a JSON object: there is no .stfs/model");
    }
  } catch (const Error& error) {
    out.warnings.push_back(std::string(error.what()) + " (there is no .stfs/model)");
  }
  out.files.clear();
  return out;
}

}  // namespace stfs
