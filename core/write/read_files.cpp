#include "core/write/read_files.h"

#include "core/base/error.h"
#include "core/base/posix.h"
#include "core/checkpoint/mounted.h"
#include "core/layer/delta/delta_layer.h"
#include "core/layer/edit/edit_layer.h"
#include "core/layer/edit/edit_lines.h"
#include "core/layer/lora/lora_layer.h"
#include "core/remote/http/url.h"
#include "core/remote/stores/hub_cache.h"
#include "core/source/local_file.h"
#include "core/stored/directory.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <optional>
#include <string_view>
#include <system_error>

namespace stfs {
namespace {

constexpr std::array kConfigs{"config.json",          "model.safetensors.index.json",
                              "hf_quant_config.json", "quantize_config.json",
                              "quant_config.json",    "adapter_config.json"};

// overlayfs shows a file of its layers with a device of its own.
bool are_same(const struct stat& a, const struct stat& b) {
  const auto is_same_time = [](const timespec& one, const timespec& other) {
    return one.tv_sec == other.tv_sec && one.tv_nsec == other.tv_nsec;
  };
  return a.st_ino == b.st_ino &&
         (a.st_dev == b.st_dev || (a.st_size == b.st_size && is_same_time(a.st_mtim, b.st_mtim) &&
                                   is_same_time(a.st_ctim, b.st_ctim)));
}

// "x-00001-of-00003.gguf" and "x-00002-of-00003.gguf".
bool are_parts_of_one(std::string_view a, std::string_view b) {
  constexpr std::string_view kEnding = "00001-of-00003.gguf";
  constexpr std::size_t kSame = std::string_view("-of-00003.gguf").size();
  return a.size() == b.size() && a.size() > kEnding.size() &&
         a.substr(0, a.size() - kEnding.size()) == b.substr(0, b.size() - kEnding.size()) &&
         a.substr(a.size() - kSame) == b.substr(b.size() - kSame);
}

}  // namespace

bool leads_to(const std::string& path, const struct stat& file) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 && are_same(status, file);
}

ReadFiles::ReadFiles(std::span<const Checkpoint* const> checkpoints, const Sources& sources)
    : cache_(sources.cache_directory()) {
  for (const std::string& copy : sources.hub_copies()) add(copy);
  for (const Checkpoint* const checkpoint : checkpoints) {
    for (const Origin& origin : checkpoint->origins()) add(origin);
    add_layers(checkpoint->layers());
    for (const Part& part : checkpoint->parts()) {
      add(part.source->path());
      // The bytes of an object of the Hub may be those of a copy in the Hub's own cache.
      if (const LocalFile* const file = part.source->local_file()) add(file->file_path());
      for (const char* const name : kConfigs) add_beside(child_name(part.directory, name));
    }
  }
}

// `path` leads to `file`.
bool ReadFiles::contain(const struct stat& file, const std::string& path) const {
  return is_in_cache(path) ||
         std::ranges::any_of(paths_, [&](const auto& read) { return leads_to(read, file); });
}

// Any file of stfs's own cache: what is not read now may be a part of what is.
bool ReadFiles::is_in_cache(const std::string& path) const {
  if (cache_.empty()) return false;
  std::error_code error;
  const auto whole = [&](const std::string& name) {
    return std::filesystem::weakly_canonical(name, error).native();
  };
  const std::string directory = whole(cache_ + "/v1");
  return !error && whole(path).starts_with(directory + "/");
}

// The Hub's own cache may have it of a directory of the Hub.
void ReadFiles::add_beside(const std::string& name) {
  add(scheme_of(name) == "hf" ? hub_local_copy(name) : name);
}

void ReadFiles::add(const Origin& origin) {
  add(origin.path);
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(origin.path, error)) {
    if (is_index_name(entry.path().native())) add(entry.path().native());
  }
  for (const Origin& source : origin.sources) add(source);
}

void ReadFiles::add(const std::string& path) {
  if (path.empty() || is_url(path) || std::ranges::find(paths_, path) != paths_.end()) return;
  paths_.push_back(path);
  // A file in a mount that is read as a file, such as merged.safetensors.
  for (std::size_t slash = path.rfind('/'); slash != std::string::npos && slash > 0;
       slash = path.rfind('/', slash - 1)) {
    std::optional<std::string> content;
    try {
      content = description_of(path.substr(0, slash));
    } catch (const Error&) {
      continue;  // it cannot be looked at
    }
    if (!content) continue;
    if (const auto mounted = parse_mount_json(*content)) add_mounted(mounted->origin);
    return;
  }
}

// What layers read besides: those of a mount, whose parts are not at hand, too.
void ReadFiles::add_layers(const Layers& layers) {
  for (const Layer& layer : layers) {
    if (layer.option == kLoraOption) add_all(std::string(adapter_choice(layer.argument).directory));
    if (layer.option == kDeltaOption && !is_url(layer.argument)) {
      // The versions before it lie beside it.
      std::error_code error;
      const std::filesystem::path version = layer.argument;
      const bool is_index = version.native().ends_with(kIndexSuffix);
      const auto run = (is_index ? version.parent_path() : version).parent_path();
      for (const auto& entry : std::filesystem::directory_iterator(run, error)) {
        add_all(entry.path().native());
      }
    }
    if (layer.option != kEditOption) continue;
    add(edit_place(layer.argument));
    for_each_edit_line(layer.argument, [&](const EditLine& line) {
      if (line.words.front() != "add" && line.words.front() != "replace") return;
      for (const std::string& word : line.words) {  // FROM is SOURCE::NAME or a file
        const std::string path = word.substr(0, word.rfind("::"));
        if (!is_url(path)) add_all(path.starts_with('/') ? path : child_name(line.directory, path));
      }
    });
  }
}

// A file, or all in a directory.
void ReadFiles::add_all(const std::string& path) {
  if (is_url(path)) return;
  std::error_code error;
  if (!std::filesystem::is_directory(path, error)) return paths_.push_back(path);
  for (const auto& entry : std::filesystem::directory_iterator(path, error)) {
    paths_.push_back(entry.path().native());
  }
}

// All that a mount may have been made of: in a directory, more than it shows.
void ReadFiles::add_mounted(const Origin& origin) {
  add_layers(origin.layers);
  for (const Origin& source : origin.sources) add_mounted(source);
  if (origin.path.empty() || is_url(origin.path)) return;
  add(origin.path);
  if (is_index_name(origin.path)) add_shards(origin.path);
  const std::filesystem::path path(origin.path);
  std::error_code error;
  const bool is_directory = std::filesystem::is_directory(path, error);
  for (const char* const name : kConfigs) {
    paths_.push_back(((is_directory ? path : path.parent_path()) / name).native());
  }
  // A part of a split GGUF file stands for all of them, which lie beside it.
  const bool is_gguf = origin.path.ends_with(kGgufSuffix);
  for (const auto& entry :
       std::filesystem::directory_iterator(is_gguf ? path.parent_path() : path, error)) {
    const std::string& name = entry.path().native();
    if (!is_checkpoint_name(name)) continue;
    if (is_gguf && !are_parts_of_one(name, origin.path)) continue;
    paths_.push_back(name);
    if (is_index_name(name)) add_shards(name);
  }
}

void ReadFiles::add_shards(const std::string& index) {
  try {
    Sources sources;
    for (const std::string& shard : read_index(index, sources).shards) {
      paths_.push_back(child_name(parent_name(index), shard));
    }
  } catch (const Error&) {
    // The index cannot be read: the mount is not made of it.
  }
}

}  // namespace stfs
