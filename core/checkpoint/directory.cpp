#include "core/checkpoint/directory.h"

#include "core/base/error.h"
#include "core/base/posix.h"
#include "core/format/guess.h"

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

Candidates candidates_in(const std::string& path) {
  Candidates candidates;
  for (std::string& name : names_in(path)) {
    if (name.ends_with(kIndexSuffix)) {
      candidates.indexes.push_back(std::move(name));
    } else if (name.ends_with(kFileSuffix)) {
      candidates.files.push_back(std::move(name));
    }
  }
  std::ranges::sort(candidates.indexes);
  std::ranges::sort(candidates.files);
  return candidates;
}

Index read_index(const std::string& path) {
  const std::string text = read_file(path, kMaxIndexBytes);
  try {
    return parse_index(text, path);
  } catch (const Error& refusal) {
    throw explained(refusal, text, path);
  }
}

std::vector<std::string> checkpoints_in(const std::string& path) {
  Candidates candidates = candidates_in(path);
  std::set<std::string> shards;
  for (const std::string& index : candidates.indexes) {
    try {
      for (const std::string& shard : read_index(std::filesystem::path(path) / index).shards) {
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
