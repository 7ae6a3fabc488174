#include "core/checkpoint/follow.h"

#include "core/base/error.h"
#include "core/base/posix.h"
#include "core/base/text.h"
#include "core/checkpoint/checkpoint.h"
#include "core/format/index.h"
#include "core/format/safetensors.h"
#include "core/remote/http/url.h"
#include "core/remote/sources.h"
#include "core/source/source.h"
#include "core/stored/directory.h"
#include "core/stored/tensor_list.h"

#include <algorithm>
#include <array>
#include <compare>
#include <cstddef>
#include <filesystem>
#include <optional>
#include <span>
#include <string_view>
#include <system_error>
#include <utility>

namespace stfs {
namespace {

constexpr std::array<std::string_view, 4> kDirectories{"weight_v", "step_", "checkpoint-", "iter_"};

bool may_be_version(const std::string& directory, const std::string& name) {
  if (name.starts_with('.') || name.starts_with("tmp")) return false;
  std::error_code error;
  if (!std::filesystem::is_directory(directory + "/" + name, error)) {
    return is_checkpoint_name(name);
  }
  return std::ranges::any_of(kDirectories,
                             [&](std::string_view begin) { return name.starts_with(begin); });
}

std::string mark_of(const Source& source) {
  return source.token() + " " + std::to_string(source.size()) + "\n";
}

// The files of a version and what tells another state of them. Throws Error for one that is not
// complete.
std::string files_of_index(const std::string& path, Sources& sources) {
  const Index index = read_index(path, sources);
  std::string files = mark_of(*sources.open(path));
  std::vector<std::vector<std::string_view>> wanted(index.shards.size());
  for (const Index::Entry& entry : index.entries) {
    wanted[entry.shard].push_back(index.name(entry));
  }
  for (std::size_t i = 0; i < index.shards.size(); ++i) {
    const std::string shard = child_name(parent_name(path), index.shards[i]);
    const auto source = sources.open(shard);
    Header header = read_safetensors(*source, shard);
    std::size_t others = 0;
    const std::vector<std::string_view> missing = keep_names(header, wanted[i], others);
    if (!missing.empty()) {
      throw Error(ErrorCode::kMissingTensor, shard, "lacks a tensor that the index maps to it");
    }
    files += mark_of(*source);
  }
  return files;
}

std::string files_of(const std::string& path) {
  Sources sources;
  std::string file = path;
  if (const auto candidates = candidates_in(path, sources)) {
    if (const auto index = candidates->index()) {
      return files_of_index(child_name(path, *index), sources);
    }
    const auto lone = candidates->file();
    if (!lone) throw Error(ErrorCode::kAbsent, path, "no checkpoint");
    file = child_name(path, *lone);
  } else if (path.ends_with(kIndexSuffix)) {
    return files_of_index(path, sources);
  }
  if (file.ends_with(kFileSuffix)) {
    const auto source = sources.open(file);
    read_safetensors(*source, file);
    return mark_of(*source);
  }
  const Checkpoint checkpoint(std::span(&file, 1), {.sources = &sources});  // with its parts
  std::string files;
  for (const Part& part : checkpoint.parts()) files += mark_of(*part.source);
  return files;
}

}  // namespace

Follower::Follower(std::string directory, std::string marker)
    : directory_(std::move(directory)), marker_(std::move(marker)) {
  if (is_url(directory_)) {
    throw Error(ErrorCode::kUsage, public_name(directory_),
                "only a local directory can be followed: mount or synchronise it first");
  }
  if (marker_.find('/') != std::string::npos || marker_ == "." || marker_ == "..") {
    throw Error(ErrorCode::kUsage, marker_, "not the name of a file in a version's directory");
  }
  while (directory_.size() > 1 && directory_.ends_with('/')) directory_.pop_back();
}

std::vector<std::string> Follower::look() {
  std::vector<std::string> names = names_in(directory_);
  std::erase_if(names, [&](const std::string& name) { return !may_be_version(directory_, name); });
  std::ranges::sort(names, [](const std::string& a, const std::string& b) {
    return std::is_lt(natural_order(a, b));
  });
  std::map<std::string, std::string> found;
  std::vector<std::string> complete;
  for (const std::string& name : names) {
    const std::string path = directory_ + "/" + name;
    const auto before = seen_.find(name);
    if (before != seen_.end() && before->second.empty()) {
      found[name] = "";
      continue;
    }
    std::error_code error;
    if (!marker_.empty() && !std::filesystem::exists(path + "/" + marker_, error)) continue;
    try {
      std::string files = files_of(path);
      const bool is_unchanged = before != seen_.end() && before->second == files;
      if (is_unchanged) complete.push_back(path);
      found[name] = is_unchanged ? "" : std::move(files);
    } catch (const Error&) {
      continue;  // not complete, or gone since it was listed
    }
  }
  seen_ = std::move(found);
  return complete;
}

}  // namespace stfs
