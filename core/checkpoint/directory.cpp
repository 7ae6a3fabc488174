#include "core/checkpoint/directory.h"

#include "core/base/error.h"
#include "core/format/guess.h"
#include "core/source/url.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <set>
#include <utility>

namespace stfs {
namespace {

constexpr std::uint64_t kMaxIndexBytes = 1ULL << 30;

std::optional<std::string> choose(const std::vector<std::string>& names, std::string_view suffix) {
  const std::string usual = "model" + std::string(suffix);
  if (std::ranges::find(names, usual) != names.end()) return usual;
  if (names.size() == 1) return names.front();
  return std::nullopt;
}

}  // namespace

std::optional<std::string> Candidates::index() const { return choose(indexes, kIndexSuffix); }
std::optional<std::string> Candidates::file() const { return choose(files, kFileSuffix); }

Candidates candidates_of(std::span<const std::string> names) {
  Candidates candidates;
  for (const std::string& name : names) {
    if (name.ends_with(kIndexSuffix)) {
      candidates.indexes.push_back(name);
    } else if (name.ends_with(kFileSuffix)) {
      candidates.files.push_back(name);
    }
  }
  std::ranges::sort(candidates.indexes);
  std::ranges::sort(candidates.files);
  return candidates;
}

std::optional<Candidates> candidates_in(const std::string& path, Sources& sources) {
  const auto names = sources.names_in(path);
  return names ? std::optional(candidates_of(*names)) : std::nullopt;
}

Index read_index(const std::string& path, Sources& sources) {
  const std::string text = sources.read_file(path, kMaxIndexBytes);
  const std::string place = public_name(path);
  try {
    return parse_index(text, place);
  } catch (const Error& refusal) {
    throw explained(refusal, text, place);
  }
}

std::optional<std::vector<std::string>> checkpoints_in(const std::string& path, Sources& sources) {
  std::optional<Candidates> found = candidates_in(path, sources);
  if (!found) return std::nullopt;
  Candidates candidates = *std::move(found);
  std::set<std::string> shards;
  for (const std::string& index : candidates.indexes) {
    try {
      for (const std::string& shard : read_index(child_name(path, index), sources).shards) {
        shards.insert(std::filesystem::path(shard).lexically_normal());
      }
    } catch (const Error&) {
      // A broken index has no shards: its files are checkpoints of their own.
    }
  }
  std::vector<std::string> names = std::move(candidates.indexes);
  std::ranges::copy_if(candidates.files, std::back_inserter(names),
                       [&](const std::string& name) { return !shards.contains(name); });
  return names;
}

}  // namespace stfs
