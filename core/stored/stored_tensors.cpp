#include "core/stored/stored_tensors.h"

#include "core/base/error.h"
#include "core/base/posix.h"
#include "core/base/sort.h"
#include "core/base/text.h"
#include "core/format/format.h"
#include "core/format/gguf.h"
#include "core/format/gguf_split.h"
#include "core/format/guess.h"
#include "core/format/index.h"
#include "core/remote/http/url.h"
#include "core/stored/directory.h"
#include "core/stored/missing_checkpoint.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <map>
#include <span>
#include <utility>

namespace stfs {
namespace {

namespace fs = std::filesystem;

// Returns the message for a directory in which no checkpoint can be chosen. `all` are the names in
// it.
std::string no_choice(const std::string& directory, const std::vector<std::string>& all,
                      const Candidates& candidates) {
  std::vector<std::string> names = candidates.indexes;
  names.insert(names.end(), candidates.files.begin(), candidates.files.end());
  names.insert(names.end(), candidates.ggufs.begin(), candidates.ggufs.end());
  if (names.empty()) {
    names = candidates.torch_indexes;
    names.insert(names.end(), candidates.torch_files.begin(), candidates.torch_files.end());
  }
  if (names.empty()) return no_checkpoint_in(directory, all);
  constexpr std::size_t kShown = 32;  // enough for a repository with many quantisations of a model
  const bool are_shards = candidates.indexes.empty() && candidates.ggufs.empty() &&
                          std::ranges::all_of(names, is_one_of_several);
  if (are_shards && names.size() == 1) {
    return in_quotes(names.front()) +
           " is one of several shards, and their index *.index.json is missing: download it, or "
           "name the file to see only this shard";
  }
  std::string text = "more than one checkpoint in this directory, name one";
  if (is_url(directory))
    text += ", such as " + printable(public_name(child_name(directory, names.back())));
  for (std::size_t i = 0; i < std::min(names.size(), kShown); ++i) {
    text += (i == 0 ? ": " : ", ") + printable(names[i]);
  }
  if (names.size() > kShown) text += ", and " + std::to_string(names.size() - kShown) + " more";
  if (are_shards) {
    text +=
        " (they look like the shards of one checkpoint, whose index *.index.json is missing: "
        "download it)";
  }
  return text;
}

// If several shards are links to the same file, moves all their names to the first of them.
// mapped[i] holds the names that the index maps to shard i, sorted.
void join_links(const std::string& index_path, const Index& index,
                std::vector<std::vector<std::string_view>>& mapped) {
  std::map<std::pair<dev_t, ino_t>, std::size_t> first;
  for (std::size_t i = 0; i < index.shards.size(); ++i) {
    struct stat status {};
    const fs::path file = fs::path(index_path).parent_path() / index.shards[i];
    if (::stat(file.c_str(), &status) != 0) continue;
    const auto [entry, is_new] = first.try_emplace({status.st_dev, status.st_ino}, i);
    if (is_new) continue;
    std::vector<std::string_view>& names = mapped[entry->second];
    names.insert(names.end(), mapped[i].begin(), mapped[i].end());
    std::ranges::sort(names);
    mapped[i].clear();
  }
}

Part read_part(const std::string& path, std::string label, std::unique_ptr<const Source> source,
               Sources& sources) {
  const Format& format = format_of(*source);
  const std::string place = public_name(path);
  Header header;
  try {
    header = format.read(*source, place, [&](std::uint64_t offset, std::span<std::byte> out) {
      return sources.read(*source, offset, out);
    });
  } catch (const Error& refusal) {
    throw explained(refusal, *source, place);
  }
  return {.source = std::move(source),
          .format = &format,
          .header = std::move(header),
          .label = std::move(label)};
}

// Returns the place of a part in its split file, or nullopt for a whole file of any format.
std::optional<GgufSplit> split_of(const Part& part, const std::string& place) {
  return part.format->name == kGgufName ? gguf_split(part.header, place) : std::nullopt;
}

// Opens files together, and begins to fetch the headers of remote ones.
std::vector<Sources::Opened> open_all(std::span<const std::string> files, Sources& sources) {
  std::vector<Sources::Opened> opened = sources.open_all(files);
  for (const Sources::Opened& file : opened) {
    if (file.source) prefetch_header(*file.source);
  }
  return opened;
}

bool is_absent(const std::string& file, const Sources::Opened& opened) {
  if (!opened.error) return false;
  if (is_url(file)) return opened.error->code() == ErrorCode::kAbsent;
  std::error_code error;
  return !fs::exists(file, error) && (!error || error.value() == ENOENT);
}

// Returns a text such as ": download it; -o allow_missing mounts the rest", or "".
std::string advice_on_missing(const std::string& step, const StoredOptions& options) {
  const std::string hint(options.missing_hint);
  const std::string separator = step.empty() || hint.empty() ? "" : "; ";
  return step.empty() && hint.empty() ? "" : ": " + step + separator + hint;
}

std::string more(const std::string& conjunction, std::size_t count, const std::string& noun) {
  if (count == 0) return "";
  return ", " + conjunction + " " + std::to_string(count) + " more " + noun +
         (count == 1 ? "" : "s");
}

// Returns the message for a missing shard or part. `others` is the number of the other missing
// ones.
std::string missing_rule(const std::string& noun, const std::string& label, const std::string& file,
                         const Sources::Opened& opened, std::size_t others,
                         const StoredOptions& options) {
  const std::string why = is_url(file) ? opened.error->message() : absence_of(file);
  const std::string step = is_url(file) ? "" : others == 0 ? "download it" : "download them";
  return noun + " " + in_quotes(label) + ": " + why + more("and", others, noun) +
         advice_on_missing(step, options);
}

// Throws if `path` is a later part of a split file and the first part, which is needed to find the
// others, is absent.
void refuse_without_first(const std::string& path, const GgufSplit& split, Sources& sources) {
  const std::string place = public_name(path);
  const std::string name = last_component(place);
  const std::optional<GgufPartName> part = gguf_part_name(name);
  if (!part || part->number != split.number || part->count != split.count) return;
  const std::string first = child_name(parent_name(path), part->of(0));
  const std::vector<Sources::Opened> opened = sources.open_all(std::span(&first, 1));
  if (!is_absent(first, opened.front())) return;
  throw Error(ErrorCode::kMissingShard, place,
              missing_rule("part", part->of(0), first, opened.front(), 0, {}));
}

// Throws if two parts of a split file have a tensor with the same name.
void refuse_twice(std::span<const Part> parts) {
  std::vector<std::string_view> names;
  for (const Part& part : parts) {
    for (const TensorRecord& tensor : part.header.tensors)
      names.push_back(part.header.name(tensor));
  }
  const auto [order, any_equal] =
      sorted_order(names.size(), [&](std::uint32_t i) { return names[i]; });
  for (std::size_t i = 1; any_equal && i < order.size(); ++i) {
    if (names[order[i]] != names[order[i - 1]]) continue;
    auto part = parts.begin();
    for (std::size_t before = part->header.tensors.size(); before <= order[i]; ++part) {
      before += std::next(part)->header.tensors.size();
    }
    throw Error(ErrorCode::kDuplicateTensor, part->source->path(),
                "tensor " + in_quotes(names[order[i]]) + ": an earlier part also has it");
  }
}

class Loader {
 public:
  Loader(const StoredOptions& options, Sources& sources) : options_(options), sources_(sources) {}

  StoredTensors load(const std::string& path) {
    const std::string name = last_component(public_name(path));
    // Trust the ending of a URL, because a request would be needed to find out whether it is a
    // directory.
    const bool is_file = is_url(path) && is_source_name(name);
    auto names = is_file ? std::nullopt : sources_.names_in(path);
    directory_ = names ? path : parent_name(path);
    if (names) {
      load_directory(path, *names);
    } else if (is_index_name(name)) {
      load_index(path);
    } else {
      load_file(path, name);
    }
    return {std::move(list_), std::move(names)};
  }

 private:
  void load_directory(const std::string& path, const std::vector<std::string>& names) {
    const Candidates candidates = candidates_of(names);
    const auto index = candidates.index();
    const auto file = candidates.file();
    if (index) {
      load_index(child_name(path, *index));
    } else if (file) {
      load_file(child_name(path, *file), *file);
    } else {
      throw Error(ErrorCode::kUnreadable, public_name(path), no_choice(path, names, candidates));
    }
  }

  void load_index(const std::string& path) {
    const Index index = read_index(path, sources_);
    std::vector<std::vector<std::string_view>> mapped(index.shards.size());
    for (const Index::Entry& entry : index.entries) {
      mapped[entry.shard].push_back(index.name(entry));
    }
    if (!is_url(path)) join_links(path, index, mapped);

    std::vector<std::size_t> shards;  // the shards that have tensors
    std::vector<std::string> files;   // their paths or URLs
    for (std::size_t i = 0; i < index.shards.size(); ++i) {
      if (mapped[i].empty()) continue;
      shards.push_back(i);
      files.push_back(child_name(parent_name(path), index.shards[i]));
    }
    std::vector<Sources::Opened> opened = open_all(files, sources_);
    for (std::size_t i = 0; i < shards.size(); ++i) {
      const std::string& shard = index.shards[shards[i]];
      const std::vector<std::string_view>& names = mapped[shards[i]];
      if (is_absent(files[i], opened[i])) {
        if (!options_.allow_missing) {
          std::size_t others = 0;
          for (std::size_t j = i + 1; j < shards.size(); ++j) {
            others += is_absent(files[j], opened[j]) ? 1 : 0;
          }
          throw Error(ErrorCode::kMissingShard, public_name(path),
                      missing_rule("shard", shard, files[i], opened[i], others, options_) +
                          unnamed_beside(path, index));
        }
        for (const std::string_view name : names) list_.add_missing({std::string(name), shard});
        continue;
      }
      if (opened[i].error) throw Error(*opened[i].error);
      Part part = read_part(files[i], shard, std::move(opened[i].source), sources_);
      part.is_split = split_of(part, public_name(files[i])).has_value();
      add_shard(path, std::move(part), names);
    }
    const std::string beside = index.entries.empty() ? unnamed_beside(path, index) : "";
    if (!beside.empty()) {
      list_.add_warning(printable(public_name(path)) + ": the index names no tensor" + beside);
    }
    std::uint64_t bytes = 0;
    for (const Part& part : list_.parts()) {
      for (const TensorRecord& tensor : part.header.tensors) bytes += tensor.length;
    }
    if (list_.missing().empty() && index.total_size && *index.total_size != bytes) {
      list_.add_warning(printable(public_name(path)) +
                        ": total_size: " + std::to_string(*index.total_size) +
                        ", but the tensors have " + std::to_string(bytes) +
                        " bytes (the sum in the index is wrong; no tensor is lost)");
    }
  }

  // Returns a text about shards in the directory that the index does not name, because the index
  // may be an old one. Returns "" if there are none.
  std::string unnamed_beside(const std::string& path, const Index& index) {
    if (is_url(path)) return "";  // it would need another request
    auto names = sources_.names_in(parent_name(path).empty() ? "." : parent_name(path));
    if (!names) return "";
    std::erase_if(*names, [&](const std::string& name) {
      return !is_shard_name(name) || std::ranges::find(index.shards, name) != index.shards.end();
    });
    if (names->empty()) return "";
    return " (the directory has " + in_quotes(std::ranges::min(*names)) +
           more("and", names->size() - 1, "shard") +
           ", which the index does not name: is it the index of another download?)";
  }

  void load_file(const std::string& path, std::string label) {
    Part part = read_part(path, std::move(label), sources_.open(path), sources_);
    const std::optional<GgufSplit> split = split_of(part, public_name(path));
    if (split && !options_.alone) return load_split(path, std::move(part));
    part.is_split = split.has_value();
    add(std::move(part));
  }

  // Adds the parts of a split GGUF file. `first` is the part at `path`.
  void load_split(const std::string& path, Part first) {
    const std::string place = public_name(path);
    const GgufSplit split = *split_of(first, place);
    if (split.number != 0) refuse_without_first(path, split, sources_);
    const std::vector<std::string> labels = gguf_parts(last_component(place), split, place);
    std::vector<std::string> files;
    files.reserve(labels.size());
    for (const std::string& label : labels) files.push_back(child_name(parent_name(path), label));
    const auto others = std::span(files).subspan(1);

    // Open a few at a time, because a header may claim 65,535 parts of which the first is missing.
    constexpr std::size_t kOpenedAtOnce = 64;
    std::vector<Sources::Opened> opened;
    const auto is_missing = [&](std::size_t i) {
      if (i < opened.size()) return is_absent(others[i], opened[i]);
      std::error_code error;
      return !is_url(others[i]) && !fs::exists(others[i], error);
    };

    std::vector<Part> parts;
    parts.push_back(std::move(first));
    for (std::size_t i = 0; i < others.size(); ++i) {
      const std::string& label = labels[i + 1];
      if (i == opened.size()) {
        const auto next = others.subspan(i, std::min(kOpenedAtOnce, others.size() - i));
        std::ranges::move(open_all(next, sources_), std::back_inserter(opened));
      }
      if (is_missing(i)) {
        if (!options_.allow_missing) {
          std::size_t more_missing = 0;
          for (std::size_t j = i + 1; j < others.size(); ++j) more_missing += is_missing(j) ? 1 : 0;
          throw Error(ErrorCode::kMissingShard, place,
                      missing_rule("part", label, others[i], opened[i], more_missing, options_));
        }
        list_.add_missing({std::nullopt, label});
        continue;
      }
      if (opened[i].error) throw Error(*opened[i].error);
      Part part = read_part(others[i], label, std::move(opened[i].source), sources_);
      check_gguf_part(part.header, static_cast<std::uint32_t>(i + 1), split,
                      public_name(others[i]));
      parts.push_back(std::move(part));
    }
    std::uint64_t found = 0;
    for (Part& part : parts) {
      found += part.header.tensors.size();
      part.is_split = true;
      part.first_part = parts.front().source.get();
      apply_original_shapes(parts.front().header.original_shapes, part.header);
    }
    const bool is_complete = list_.missing().empty();
    if (is_complete || found > split.tensors) check_gguf_tensors(found, split, place);
    if (!is_complete) {
      list_.add_warning(printable(place) + ": " + std::to_string(split.tensors - found) + " of " +
                        std::to_string(split.tensors) + " tensors are in parts that are missing");
    }
    refuse_twice(parts);
    for (Part& part : parts) add(std::move(part));
  }

  // Adds those tensors of a shard that the index at `path` maps to it. `mapped` is sorted.
  void add_shard(const std::string& path, Part part, std::span<const std::string_view> mapped) {
    const std::string shard = part.label;
    std::size_t unmapped = 0;
    const std::vector<std::string_view> missing = keep_names(part.header, mapped, unmapped);
    if (!missing.empty() && !options_.allow_missing) {
      throw Error(ErrorCode::kMissingTensor, public_name(path),
                  "tensor " + in_quotes(missing.front()) + ": shard " + in_quotes(shard) +
                      " does not hold it" + more("nor", missing.size() - 1, "tensor") +
                      advice_on_missing(
                          is_url(path) ? "" : "download the index and the shard again", options_));
    }
    for (const std::string_view name : missing) list_.add_missing({std::string(name), shard});
    part.is_whole = unmapped == 0;
    if (unmapped > 0) {
      list_.add_warning(
          printable(public_name(path)) + ": shard " + in_quotes(shard) + ": holds " +
          std::to_string(unmapped) + (unmapped == 1 ? " tensor" : " tensors") +
          " that the index does not name (mount the shard itself to see all its tensors)");
    }
    add(std::move(part));
  }

  void add(Part part) {
    part.directory = directory_;
    const std::string& path = part.source->path();
    if (const std::string sidecar = is_url(path) ? "" : sidecar_of(path); !sidecar.empty()) {
      part.header.warnings.push_back(printable(path) + ": " + in_quotes(sidecar) +
                                     " beside it belongs to an unfinished download: bytes that "
                                     "have not arrived are shown as zeros: finish the download");
    }
    list_.add(std::move(part));
  }

  StoredOptions options_;
  Sources& sources_;
  std::string directory_;  // contains the files
  TensorList list_;
};

}  // namespace

StoredTensors load_stored(const std::string& path, const StoredOptions& options, Sources& sources) {
  return Loader(options, sources).load(path);
}

}  // namespace stfs
