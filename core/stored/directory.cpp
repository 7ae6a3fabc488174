#include "core/stored/directory.h"

#include "core/base/error.h"
#include "core/format/gguf_split.h"
#include "core/format/guess.h"
#include "core/remote/http/url.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <set>
#include <utility>

namespace stfs {
namespace {

constexpr std::uint64_t kMaxIndexBytes = 100'000'000;  // like kMaxJsonLength of a header

constexpr std::string_view kUsual = "model";
constexpr std::string_view kUsualOfTorch = "pytorch_model";
constexpr std::string_view kUsualOfDiffusers = "diffusion_pytorch_model";
constexpr std::string_view kTorchSuffix = ".bin";

std::optional<std::string> choose(const std::vector<std::string>& names, std::string_view stem,
                                  std::string_view suffix) {
  const std::string usual = std::string(stem) + std::string(suffix);
  if (std::ranges::find(names, usual) != names.end()) return usual;
  if (names.size() == 1 && !is_one_of_several(names.front())) return names.front();
  return std::nullopt;
}

// The beginning matters because a directory may have other .bin files, such as the state of an
// optimizer or a vocabulary.
bool begins_as_torch(std::string_view name) {
  return name.starts_with(kUsualOfTorch) || name.starts_with(kUsualOfDiffusers);
}
bool is_torch_file(std::string_view name) {
  return begins_as_torch(name) && name.ends_with(kTorchSuffix);
}

// Returns true for an index of a variant. For the variant model.fp16.safetensors these are
// "model.safetensors.index.fp16.json" and "model.safetensors.fp16.index.json".
bool is_index_of_variant(std::string_view name, std::string_view suffix) {
  constexpr std::string_view kEnd = ".json", kIndex = ".index";
  const std::size_t at = name.rfind(suffix);
  if (at == std::string_view::npos || !name.ends_with(kEnd)) return false;
  const std::size_t begin = at + suffix.size();
  if (name.size() < begin + kIndex.size() + kEnd.size()) return false;
  const std::string_view rest =
      name.substr(begin, name.size() - begin - kEnd.size());  // ".index.fp16"
  const std::string_view variant = rest.starts_with(kIndex) ? rest.substr(kIndex.size())
                                   : rest.ends_with(kIndex)
                                       ? rest.substr(0, rest.size() - kIndex.size())
                                       : std::string_view();
  return variant.size() > 1 && variant.front() == '.' &&
         variant.find('.', 1) == std::string_view::npos;
}

bool is_torch_index(std::string_view name) {
  return begins_as_torch(name) &&
         (name.ends_with(kTorchIndexSuffix) || is_index_of_variant(name, kTorchSuffix));
}

// Returns true if the directory has a whole file that is preferred to the index of a variant.
bool has_whole_file(const Candidates& candidates) {
  const std::optional<std::string> file = candidates.file();
  return file && file->find("-of-") == std::string::npos;
}

}  // namespace

bool is_index_name(std::string_view name) {
  return name.ends_with(kIndexSuffix) || name.ends_with(kTorchIndexSuffix) ||
         is_index_of_variant(name, kFileSuffix) || is_index_of_variant(name, kTorchSuffix);
}

bool is_checkpoint_name(std::string_view name) {
  const std::string_view last = name.substr(name.rfind('/') + 1);
  return name.ends_with(kIndexSuffix) || is_index_of_variant(last, kFileSuffix) ||
         name.ends_with(kFileSuffix) || name.ends_with(kGgufSuffix) || is_torch_index(last) ||
         is_torch_file(last);
}

bool is_one_of_several(std::string_view name) {
  constexpr std::string_view kPattern = "-#####-of-#####.";  // # is a digit
  const auto is_alike = [](char c, char pattern) {
    return pattern == '#' ? c >= '0' && c <= '9' : c == pattern;
  };
  const auto* const found =
      std::search(name.begin(), name.end(), kPattern.begin(), kPattern.end(), is_alike);
  return found != name.end() && name.find("-of-00001.") == std::string_view::npos;
}

bool is_source_name(std::string_view name) {
  constexpr std::array<std::string_view, 6> kOthers{kTorchIndexSuffix, kTorchSuffix, ".pt", ".pth",
                                                    ".ckpt",           ".npz"};
  return is_checkpoint_name(name) ||
         std::ranges::any_of(kOthers, [&](std::string_view end) { return name.ends_with(end); });
}

std::optional<std::string> Candidates::index() const {
  if (!indexes.empty()) return choose(indexes, kUsual, kIndexSuffix);
  if (!files.empty() || !ggufs.empty()) return std::nullopt;
  const auto usual = choose(torch_indexes, kUsualOfTorch, kTorchIndexSuffix);
  return usual ? usual : choose(torch_indexes, kUsualOfDiffusers, kTorchIndexSuffix);
}

std::optional<std::string> Candidates::file() const {
  if (!indexes.empty()) return std::nullopt;
  if (!files.empty()) return choose(files, kUsual, kFileSuffix);
  if (!ggufs.empty()) return ggufs.size() == 1 ? std::optional(ggufs.front()) : std::nullopt;
  if (!torch_indexes.empty()) return std::nullopt;
  const auto usual = choose(torch_files, kUsualOfTorch, kTorchSuffix);
  return usual ? usual : choose(torch_files, kUsualOfDiffusers, kTorchSuffix);
}

Candidates candidates_of(std::span<const std::string> names) {
  Candidates candidates;
  std::vector<std::string> variants;
  for (const std::string& name : names) {
    if (name.ends_with(kIndexSuffix)) {
      candidates.indexes.push_back(name);
    } else if (name.ends_with(kFileSuffix)) {
      candidates.files.push_back(name);
    } else if (name.ends_with(kGgufSuffix)) {
      candidates.ggufs.push_back(name);
    } else if (is_index_of_variant(name, kFileSuffix)) {
      variants.push_back(name);
    } else if (is_torch_index(name)) {
      candidates.torch_indexes.push_back(name);
    } else if (is_torch_file(name)) {
      candidates.torch_files.push_back(name);
    }
  }
  for (auto* const kind : {&candidates.indexes, &candidates.files, &candidates.ggufs,
                           &candidates.torch_indexes, &candidates.torch_files}) {
    std::ranges::sort(*kind);
  }
  if (candidates.indexes.empty() && !has_whole_file(candidates)) {
    std::ranges::sort(variants);
    candidates.indexes = std::move(variants);
  }
  // Keep only the first part of each split file. It comes before the others because of the sorting.
  std::set<std::string> splits;
  std::erase_if(candidates.ggufs, [&](const std::string& name) {
    const std::optional<GgufPartName> part = gguf_part_name(name);
    return part && !splits.insert(part->of(0)).second;
  });
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
  std::vector<std::string> names = std::move(candidates.indexes);
  std::ranges::move(candidates.torch_indexes, std::back_inserter(names));
  for (const std::string& index : names) {
    try {
      for (const std::string& shard : read_index(child_name(path, index), sources).shards) {
        shards.insert(std::filesystem::path(shard).lexically_normal());
      }
    } catch (const Error&) {
      // The shards of a broken index are not known, so all files count as separate checkpoints.
    }
  }
  for (const auto* files : {&candidates.files, &candidates.ggufs, &candidates.torch_files}) {
    std::ranges::copy_if(*files, std::back_inserter(names),
                         [&](const std::string& name) { return !shards.contains(name); });
  }
  return names;
}

}  // namespace stfs
