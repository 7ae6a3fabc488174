#include "core/checkpoint/checkpoint.h"

#include "core/base/error.h"
#include "core/base/posix.h"
#include "core/base/sort.h"
#include "core/base/text.h"
#include "core/checkpoint/absent.h"
#include "core/checkpoint/dequantize.h"
#include "core/checkpoint/directory.h"
#include "core/checkpoint/names.h"
#include "core/format/format.h"
#include "core/format/gguf.h"
#include "core/format/gguf_split.h"
#include "core/format/guess.h"
#include "core/format/index.h"
#include "core/recipe/dequantize.h"
#include "core/source/url.h"

#include <fnmatch.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <iterator>
#include <limits>
#include <map>
#include <set>

namespace stfs {
namespace {

namespace fs = std::filesystem;

// The rule that a directory with these names breaks when no checkpoint can be chosen.
std::string no_choice(const std::string& directory, const std::vector<std::string>& all,
                      const Candidates& candidates) {
  std::vector<std::string> names = candidates.indexes;
  names.insert(names.end(), candidates.files.begin(), candidates.files.end());
  names.insert(names.end(), candidates.ggufs.begin(), candidates.ggufs.end());
  if (names.empty()) return no_checkpoint_in(directory, all);
  constexpr std::size_t kShown = 32;  // a repository has as many quantisations of one model
  std::string text = "more than one checkpoint in this directory, name one";
  if (is_url(directory))
    text += ", such as " + printable(public_name(child_name(directory, names.back())));
  for (std::size_t i = 0; i < std::min(names.size(), kShown); ++i) {
    text += (i == 0 ? ": " : ", ") + printable(names[i]);
  }
  if (names.size() > kShown) text += ", and " + std::to_string(names.size() - kShown) + " more";
  if (candidates.indexes.empty() && std::ranges::all_of(names, is_shard_name)) {
    text +=
        " (they look like the shards of one, whose index *.safetensors.index.json is missing:"
        " download it)";
  }
  return text;
}

// Rebuilds the arenas of a header without the names and shapes of removed tensors.
void compact(Header& header) {
  std::string names;
  std::vector<std::uint64_t> dims;
  for (TensorRecord& tensor : header.tensors) {
    const std::string_view name = header.name(tensor);
    const std::span shape = header.shape(tensor);
    if (tensor.stored_rank != TensorRecord::kStoredAsShape) {
      const std::span stored = header.stored_shape(tensor);
      dims.insert(dims.end(), stored.begin(), stored.end());
    }
    tensor.name_begin = names.size();
    tensor.shape_begin = dims.size();
    names += name;
    dims.insert(dims.end(), shape.begin(), shape.end());
  }
  header.names = std::move(names);
  header.dims = std::move(dims);
  header.tensors.shrink_to_fit();
  header.by_name.shrink_to_fit();
}

// Treats shards that are links to one file as one: moves the names of the others to the first.
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

// Removes the tensors of a shard whose names are not in `mapped`, which is sorted; sets `unmapped`
// to their number. Returns the names in `mapped` that the shard lacks.
std::vector<std::string_view> keep_mapped(Header& header, std::span<const std::string_view> mapped,
                                          std::size_t& unmapped) {
  std::vector<std::string_view> missing;
  std::vector<bool> keep(header.tensors.size(), false);
  auto next = header.by_name.begin();
  for (const std::string_view name : mapped) {
    const auto name_at = [&] { return header.name(header.tensors[*next]); };
    while (next != header.by_name.end() && name_at() < name) ++next;
    if (next == header.by_name.end() || name_at() != name) {
      missing.push_back(name);
    } else {
      keep[*next] = true;
    }
  }
  unmapped = header.tensors.size() - (mapped.size() - missing.size());
  if (unmapped == 0) return missing;

  std::vector<std::uint32_t> renumbered(header.tensors.size());
  std::uint32_t kept = 0;
  for (std::size_t i = 0; i < keep.size(); ++i) {
    if (!keep[i]) continue;
    renumbered[i] = kept;
    header.tensors[kept++] = header.tensors[i];
  }
  header.tensors.resize(kept);
  std::erase_if(header.by_name, [&](std::uint32_t i) { return !keep[i]; });
  for (std::uint32_t& i : header.by_name) i = renumbered[i];
  compact(header);
  return missing;
}

Part read_part(const std::string& path, std::string label, std::unique_ptr<const Source> source) {
  const Format& format = format_of(*source);
  const std::string place = public_name(path);
  Header header;
  try {
    header = format.read(*source, place);
  } catch (const Error& refusal) {
    throw explained(refusal, *source, place);
  }
  return {.source = std::move(source),
          .format = &format,
          .header = std::move(header),
          .label = std::move(label)};
}

// The place of a part in its split file; nullopt for a whole file of any format.
std::optional<GgufSplit> split_of(const Part& part, const std::string& place) {
  return part.format->name == kGgufName ? gguf_split(part.header, place) : std::nullopt;
}

// Opens files together, and lets those elsewhere begin to fetch their headers.
std::vector<Sources::Opened> open_all(std::span<const std::string> files,
                                      const LoadOptions& options) {
  std::vector<Sources::Opened> opened = options.sources->open_all(files);
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

// ": download it; -o allow_missing mounts the rest"
std::string advice_on_missing(const std::string& step, const LoadOptions& options) {
  const std::string hint(options.missing_hint);
  const std::string separator = step.empty() || hint.empty() ? "" : "; ";
  return step.empty() && hint.empty() ? "" : ": " + step + separator + hint;
}

std::string more(const std::string& conjunction, std::size_t count, const std::string& noun) {
  if (count == 0) return "";
  return ", " + conjunction + " " + std::to_string(count) + " more " + noun +
         (count == 1 ? "" : "s");
}

// The rule that a missing shard or part breaks. `others`: as many more are missing.
std::string missing_rule(const std::string& noun, const std::string& label, const std::string& file,
                         const Sources::Opened& opened, std::size_t others,
                         const LoadOptions& options) {
  const std::string why = is_url(file) ? opened.error->message() : absence_of(file);
  const std::string step = is_url(file) ? "" : others == 0 ? "download it" : "download them";
  return noun + " " + in_quotes(label) + ": " + why + more("and", others, noun) +
         advice_on_missing(step, options);
}

// Refuses a part whose first part, which finds the others, is absent.
void refuse_without_first(const std::string& path, const GgufSplit& split,
                          const LoadOptions& options) {
  const std::string place = public_name(path);
  const std::string name = last_component(place);
  const std::optional<GgufPartName> part = gguf_part_name(name);
  if (!part || part->number != split.number || part->count != split.count) return;
  const std::string first = child_name(parent_name(path), part->of(0));
  const std::vector<Sources::Opened> opened = options.sources->open_all(std::span(&first, 1));
  if (!is_absent(first, opened.front())) return;
  throw Error(ErrorCode::kMissingShard, place,
              missing_rule("part", part->of(0), first, opened.front(), 0, {}));
}

// Refuses a tensor that two parts of a split file have.
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
                "tensor " + in_quotes(names[order[i]]) + ": a part before has it too");
  }
}

// Whether an origin is one source, with all of its tensors.
bool is_one_source(const Origin& origin) {
  if (!origin.path.empty()) return true;
  return origin.within.empty() && origin.sources.size() == 1 && is_one_source(origin.sources[0]);
}

// MLX has names of its own for the tensors, and alone stores weights in words of 32 bits.
bool is_of_mlx(const Part& part) {
  const auto format = part.header.metadata.find("format");
  if (format && part.header.metadata[*format].second == "mlx") return true;
  return std::ranges::any_of(part.header.tensors, [&](const TensorRecord& tensor) {
    return tensor.dtype == DType::kU32 && part.header.name(tensor).ends_with(".weight");
  });
}

}  // namespace

std::uint64_t Tensor::elements() const {
  std::uint64_t product = 1;
  for (const std::uint64_t dim : shape) product *= dim;  // the header's check excludes overflow
  return product;
}

Content Tensor::content() const {
  if (computed != nullptr) return computed->content();
  Content content;
  content.extent(*locator->source, locator->offset, locator->length);
  return content;
}

timespec Tensor::mtime() const {
  return computed != nullptr ? computed->mtime() : locator->source->mtime();
}

int Tensor::verify() const {
  return computed != nullptr ? computed->content().verify() : locator->source->verify();
}

std::vector<Tensor> ComputedTensor::inputs() const { return {}; }

std::optional<QuantizedRecipe> ComputedTensor::recipe() const { return std::nullopt; }

Checkpoint::Checkpoint(std::span<const std::string> sources, const LoadOptions& options) {
  LoadOptions complete = options;
  if (complete.sources == nullptr) {
    own_sources_ = std::make_unique<Sources>();
    complete.sources = own_sources_.get();
  }
  const std::size_t made = complete.sources->made();
  try {
    for (const std::string& source : sources) load(source, complete);
    if (options.dequantize) derive(*options.dequantize, *complete.sources);
    order_tensors();
    merge_metadata();
    if (options.with_model_files) open_model_files(*complete.sources, options.others_may_read);
  } catch (...) {
    // They hold what they made in the cache.
    model_files_.clear();
    derivation_.reset();
    parts_.clear();
    complete.sources->remove_made_since(made);
    throw;
  }
  if (options.warn) std::ranges::for_each(warnings_, options.warn);
  listed_ = {};
}

Checkpoint::Checkpoint(std::span<const Origin> origins, const LoadOptions& options) {
  for (const Origin& origin : origins) load(origin, options);
  if (options.dequantize) derive(*options.dequantize, *options.sources);
}

// Shows the stored tensors that were added last as they are.
void Checkpoint::complete_derivation() {
  if (!derivation_) return;
  while (derivation_->stored < first_.back()) {
    derivation_->shown.push_back({.stored = derivation_->stored++});
  }
}

void Checkpoint::derive(DType type, Sources& sources) {
  complete_derivation();
  by_name_ = number_tensors();
  Dequantized result = dequantize(*this, type, sources);
  std::ranges::move(result.warnings, std::back_inserter(warnings_));
  if (result.tensors == nullptr) return;
  if (!derivation_) {
    derivation_ = std::make_unique<Derivation>();
    complete_derivation();
  }
  const auto set = static_cast<std::uint32_t>(derivation_->sets.size());
  std::vector<Derivation::Shown> shown;
  for (std::size_t i = 0; i < result.fates.size(); ++i) {
    const std::uint32_t fate = result.fates[i];
    const Derivation::Shown& before = derivation_->shown[i];
    if (fate == Dequantized::kKept) shown.push_back(before);
    if (fate < Dequantized::kGone) shown.push_back({before.stored, set, fate});
  }
  derivation_->shown = std::move(shown);
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    parts_[i].hidden_keys = std::move(result.hidden_keys[i]);
  }
  result.tensors->move_to(*this, 0);
  derivation_->sets.push_back(std::move(result.tensors));
  derivation_->texts.push_back(std::move(result.text));
}

void Checkpoint::open_model_files(Sources& sources, bool others_may_read) {
  const bool is_safetensors = std::ranges::all_of(
      parts_, [](const Part& part) { return part.format->name == kSafetensorsName; });
  const bool is_one = origins_.size() == 1 && is_one_source(origins_.front());
  if (parts_.empty() || !is_safetensors || !is_one || std::ranges::any_of(parts_, is_of_mlx))
    return;
  const std::string& directory = parts_.front().directory;
  std::optional<std::vector<std::string>> names;
  if (directory == listed_.first) {
    names = std::move(listed_.second);
  } else if (!is_url(directory)) {
    names = sources.names_in(directory.empty() ? "." : directory);
  } else if (scheme_of(directory) == "hf") {  // has told all names already
    names = sources.names_in(directory);
  }
  std::optional<DType> computed;
  for (std::uint32_t i = 0; derivation_ && !computed && i < tensor_count(); ++i) {
    if (tensor(i).computed != nullptr) computed = tensor(i).dtype;
  }
  ModelFiles found = stfs::open_model_files(directory, names, computed, others_may_read, sources);
  model_files_ = std::move(found.files);
  std::ranges::move(found.warnings, std::back_inserter(warnings_));
}

std::vector<const Source*> Checkpoint::sources() const {
  std::vector<const Source*> sources;
  for (const Part& part : parts_) sources.push_back(part.source.get());
  for (const ModelFile& file : model_files_) sources.push_back(file.source.get());
  return sources;
}

std::span<const std::string> Checkpoint::derivation_texts() const {
  return derivation_ ? std::span<const std::string>(derivation_->texts)
                     : std::span<const std::string>();
}

void Checkpoint::order_tensors() {
  complete_derivation();
  by_name_ = number_tensors();
  const bool all_plain = std::ranges::all_of(
      by_name_, [this](std::uint32_t number) { return is_plain_name(name(number)); });
  tree_ = std::make_unique<const PathTree>([this](std::uint32_t number) { return name(number); },
                                           by_name_, all_plain);
}

void Checkpoint::load(const std::string& source, const LoadOptions& options) {
  if (is_url(source)) {
    const std::string pinned = options.sources->pinned(source);
    load_path(pinned, options);
    origins_.push_back({.path = public_name(pinned)});
    return;
  }
  refuse_model_name(source);
  if (std::optional<MountedPath> mounted = find_mounted(source)) {
    return load_mounted(std::move(*mounted), options);
  }
  load_path(source, options);
  std::error_code error;
  origins_.push_back({.path = fs::absolute(source, error).string()});
}

void Checkpoint::load(const Origin& origin, const LoadOptions& options) {
  if (!origin.path.empty()) return load_path(origin.path, options);
  Checkpoint whole(origin.sources, {.allow_missing = origin.allow_missing,
                                    .dequantize = origin.dequantize,
                                    .sources = options.sources});
  whole.keep_within(origin.within);
  add_parts(whole);
}

void Checkpoint::load_mounted(MountedPath mounted, const LoadOptions& options) {
  // Since the mount was asked, a link to a source may have given it another token: ask again.
  constexpr unsigned kMostLooks = 50;
  for (unsigned looks = 1; !load_if_current(mounted, options); ++looks) {
    std::optional<MountedPath> now = find_mounted(mounted.source);
    if (!now || now->version == mounted.version || looks == kMostLooks) refuse_changed(mounted);
    mounted = *std::move(now);
  }
}

// Returns false when the sources are not the versions that the mount has named.
bool Checkpoint::load_if_current(const MountedPath& mounted, const LoadOptions& options) {
  const Origin& origin = mounted.origin;
  if (options.dequantize) refuse_other_values(mounted, *options.dequantize);
  bool is_current = false;
  try {
    Checkpoint whole(origin.sources, {.allow_missing = origin.allow_missing,
                                      .dequantize = origin.dequantize,
                                      .sources = options.sources});
    is_current = version_of(whole) == mounted.version;
    if (is_current) {
      whole.keep_within(origin.within);
      add_parts(whole);
    }
  } catch (const Error& error) {
    refuse_lost(mounted, error);
  }
  if (!is_current) return false;
  if (origin.within.empty() && origin.allow_missing == options.allow_missing &&
      !origin.dequantize) {
    origins_.insert(origins_.end(), origin.sources.begin(), origin.sources.end());
  } else {
    origins_.push_back(origin);
  }
  return true;
}

// Removes all tensors but those at or below a path in a mount of this checkpoint; "" keeps all.
// Afterwards only add_parts() of another checkpoint may use this one.
void Checkpoint::keep_within(const std::string& within) {
  if (within.empty()) return;
  order_tensors();
  std::string path = within;
  std::optional<PathTree> dotted;
  if (is_at_or_below(within, kTreeView)) {
    dotted =
        PathTree::with_dots([this](std::uint32_t number) { return name(number); }, tensor_count());
    path.erase(0, kTreeView.size() + 1);
  }
  const PathTree& tree = dotted ? *dotted : *tree_;
  const auto is_kept = [&](std::uint32_t number) {
    return path.empty() || is_at_or_below(tree.path(number), path);
  };
  missing_.clear();
  warnings_.clear();
  if (derivation_) {  // the parts stay whole: a computed tensor may need any tensor of them
    std::vector<Derivation::Shown> shown;
    for (std::uint32_t i = 0; i < tensor_count(); ++i) {
      if (is_kept(i)) shown.push_back(derivation_->shown[i]);
    }
    derivation_->shown = std::move(shown);
    return;
  }
  std::vector<std::vector<std::string_view>> kept(parts_.size());
  for (const std::uint32_t number : by_name_) {
    if (is_kept(number)) kept[part_number(number)].push_back(name(number));
  }
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    std::size_t others = 0;
    keep_mapped(parts_[i].header, kept[i], others);
    parts_[i].is_whole = parts_[i].is_whole && others == 0;
  }
  std::set<const Source*> first_parts;  // of the parts that are kept
  for (const Part& part : parts_) {
    if (!part.header.tensors.empty()) first_parts.insert(part.first_part);
  }
  std::erase_if(parts_, [&](const Part& part) {
    return part.header.tensors.empty() && !first_parts.contains(part.source.get());
  });
}

void Checkpoint::load_path(const std::string& path, const LoadOptions& options) {
  const std::size_t first = parts_.size();
  const std::string name = last_component(public_name(path));
  // A store would have to be asked whether a name is a directory.
  const bool is_file = is_url(path) && is_checkpoint_name(name);
  const auto names = is_file ? std::nullopt : options.sources->names_in(path);
  if (names) {
    listed_ = {path, *names};
    load_directory(path, *names, options);
  } else if (name.ends_with(kIndexSuffix)) {
    load_index(path, options);
  } else {
    load_file(path, name, options);
  }
  for (std::size_t i = first; i < parts_.size(); ++i) {
    parts_[i].directory = names ? path : parent_name(path);
  }
}

void Checkpoint::load_directory(const std::string& path, const std::vector<std::string>& names,
                                const LoadOptions& options) {
  const Candidates candidates = candidates_of(names);
  const auto index = candidates.index();
  const auto file = candidates.file();
  if (index) {
    load_index(child_name(path, *index), options);
  } else if (file) {
    load_file(child_name(path, *file), *file, options);
  } else {
    throw Error(ErrorCode::kUnreadable, public_name(path), no_choice(path, names, candidates));
  }
}

void Checkpoint::load_index(const std::string& path, const LoadOptions& options) {
  const Index index = read_index(path, *options.sources);
  std::vector<std::vector<std::string_view>> mapped(index.shards.size());
  for (const Index::Entry& entry : index.entries) {
    mapped[entry.shard].push_back(index.name(entry));
  }
  if (!is_url(path)) join_links(path, index, mapped);

  std::vector<std::size_t> shards;  // with tensors
  std::vector<std::string> files;   // of these
  for (std::size_t i = 0; i < index.shards.size(); ++i) {
    if (mapped[i].empty()) continue;
    shards.push_back(i);
    files.push_back(child_name(parent_name(path), index.shards[i]));
  }
  std::vector<Sources::Opened> opened = open_all(files, options);
  const std::size_t first_part = parts_.size();
  const std::size_t first_missing = missing_.size();
  for (std::size_t i = 0; i < shards.size(); ++i) {
    const std::string& shard = index.shards[shards[i]];
    const std::vector<std::string_view>& names = mapped[shards[i]];
    if (is_absent(files[i], opened[i])) {
      if (!options.allow_missing) {
        std::size_t others = 0;
        for (std::size_t j = i + 1; j < shards.size(); ++j) {
          others += is_absent(files[j], opened[j]) ? 1 : 0;
        }
        throw Error(ErrorCode::kMissingShard, public_name(path),
                    missing_rule("shard", shard, files[i], opened[i], others, options));
      }
      for (const std::string_view name : names) missing_.push_back({std::string(name), shard});
      continue;
    }
    if (opened[i].error) throw Error(*opened[i].error);
    Part part = read_part(files[i], shard, std::move(opened[i].source));
    part.is_split = split_of(part, public_name(files[i])).has_value();
    add_shard(path, std::move(part), names, options);
  }
  std::uint64_t bytes = 0;
  for (std::size_t i = first_part; i < parts_.size(); ++i) {
    for (const TensorRecord& tensor : parts_[i].header.tensors) bytes += tensor.length;
  }
  if (missing_.size() == first_missing && index.total_size && *index.total_size != bytes) {
    warnings_.push_back(printable(public_name(path)) +
                        ": total_size: " + std::to_string(*index.total_size) +
                        ", but the tensors have " + std::to_string(bytes) +
                        " bytes (the sum in the index is wrong; no tensor is lost)");
  }
}

void Checkpoint::load_file(const std::string& path, std::string label, const LoadOptions& options) {
  Part part = read_part(path, std::move(label), options.sources->open(path));
  const std::optional<GgufSplit> split = split_of(part, public_name(path));
  if (split && !options.alone) return load_split(path, std::move(part), options);
  part.is_split = split.has_value();
  add_part(std::move(part));
}

// Adds the parts of a split GGUF file, of which `first` is that at `path`.
void Checkpoint::load_split(const std::string& path, Part first, const LoadOptions& options) {
  const std::string place = public_name(path);
  const GgufSplit split = *split_of(first, place);
  if (split.number != 0) refuse_without_first(path, split, options);
  const std::vector<std::string> labels = gguf_parts(last_component(place), split, place);
  std::vector<std::string> files;
  files.reserve(labels.size());
  for (const std::string& label : labels) files.push_back(child_name(parent_name(path), label));
  const auto others = std::span(files).subspan(1);

  // Not all at once: a header of 200 bytes may say 65535, of which the first is missing.
  constexpr std::size_t kOpenedAtOnce = 64;
  std::vector<Sources::Opened> opened;
  const auto is_missing = [&](std::size_t i) {
    if (i < opened.size()) return is_absent(others[i], opened[i]);
    std::error_code error;
    return !is_url(others[i]) && !fs::exists(others[i], error);
  };

  const std::size_t first_missing = missing_.size();
  std::vector<Part> parts;
  parts.push_back(std::move(first));
  for (std::size_t i = 0; i < others.size(); ++i) {
    const std::string& label = labels[i + 1];
    if (i == opened.size()) {
      const auto next = others.subspan(i, std::min(kOpenedAtOnce, others.size() - i));
      std::ranges::move(open_all(next, options), std::back_inserter(opened));
    }
    if (is_missing(i)) {
      if (!options.allow_missing) {
        std::size_t more_missing = 0;
        for (std::size_t j = i + 1; j < others.size(); ++j) more_missing += is_missing(j) ? 1 : 0;
        throw Error(ErrorCode::kMissingShard, place,
                    missing_rule("part", label, others[i], opened[i], more_missing, options));
      }
      missing_.push_back({std::nullopt, label});
      continue;
    }
    if (opened[i].error) throw Error(*opened[i].error);
    Part part = read_part(others[i], label, std::move(opened[i].source));
    check_gguf_part(part.header, static_cast<std::uint32_t>(i + 1), split, public_name(others[i]));
    parts.push_back(std::move(part));
  }
  std::uint64_t found = 0;
  for (Part& part : parts) {
    found += part.header.tensors.size();
    part.is_split = true;
    part.first_part = parts.front().source.get();
    apply_original_shapes(parts.front().header.original_shapes, part.header);
  }
  const bool is_complete = missing_.size() == first_missing;
  if (is_complete || found > split.tensors) check_gguf_tensors(found, split, place);
  if (!is_complete) {
    warnings_.push_back(printable(place) + ": " + std::to_string(split.tensors - found) + " of " +
                        std::to_string(split.tensors) + " tensors are in parts that are missing");
  }
  refuse_twice(parts);
  for (Part& part : parts) add_part(std::move(part));
}

// Adds the tensors of a shard that the index at `path` maps to it; `mapped` is sorted.
void Checkpoint::add_shard(const std::string& path, Part part,
                           std::span<const std::string_view> mapped, const LoadOptions& options) {
  const std::string shard = part.label;
  std::size_t unmapped = 0;
  const std::vector<std::string_view> missing = keep_mapped(part.header, mapped, unmapped);
  if (!missing.empty() && !options.allow_missing) {
    throw Error(ErrorCode::kMissingTensor, public_name(path),
                "tensor " + in_quotes(missing.front()) + ": shard " + in_quotes(shard) +
                    " does not hold it" + more("nor", missing.size() - 1, "tensor") +
                    advice_on_missing(is_url(path) ? "" : "download the index and the shard again",
                                      options));
  }
  for (const std::string_view name : missing) missing_.push_back({std::string(name), shard});
  part.is_whole = unmapped == 0;
  if (unmapped > 0) {
    warnings_.push_back(
        printable(public_name(path)) + ": shard " + in_quotes(shard) + ": holds " +
        std::to_string(unmapped) + (unmapped == 1 ? " tensor" : " tensors") +
        " that the index does not name (mount the shard itself to see all its tensors)");
  }
  add_part(std::move(part));
}

void Checkpoint::add_part(Part part) {
  const auto is_used = [&](const std::string& label) {
    return std::ranges::find(parts_, label, &Part::label) != parts_.end();
  };
  const std::string first_choice = part.label;
  for (int n = 2; is_used(part.label); ++n) part.label = first_choice + "~" + std::to_string(n);
  part.header.original_shapes = {};
  const std::uint64_t count = std::uint64_t{first_.back()} + part.header.tensors.size();
  if (count > std::numeric_limits<std::uint32_t>::max()) {
    throw Error(ErrorCode::kUsage, part.source->path(),
                "more than 4294967295 tensors in all: name fewer sources");
  }
  first_.push_back(static_cast<std::uint32_t>(count));
  parts_.push_back(std::move(part));
}

const Source* Checkpoint::single_file(std::string_view format) const {
  const bool is_single = !derivation_ && parts_.size() == 1 && parts_.front().is_whole &&
                         parts_.front().format->name == format;
  return is_single ? parts_.front().source.get() : nullptr;
}

void Checkpoint::add_parts(Checkpoint& other) {
  if (other.derivation_) {
    other.complete_derivation();
    if (!derivation_) derivation_ = std::make_unique<Derivation>();
    complete_derivation();
    const std::uint32_t first = first_.back();
    const auto sets = static_cast<std::uint32_t>(derivation_->sets.size());
    for (Derivation::Shown shown : other.derivation_->shown) {
      shown.stored += first;
      if (shown.set != Derivation::kStored) shown.set += sets;
      derivation_->shown.push_back(shown);
    }
    derivation_->stored = first + other.derivation_->stored;
    for (auto& set : other.derivation_->sets) {
      set->move_to(*this, first);
      derivation_->sets.push_back(std::move(set));
    }
    std::ranges::move(other.derivation_->texts, std::back_inserter(derivation_->texts));
  }
  for (Part& part : other.parts_) add_part(std::move(part));
  std::ranges::move(other.missing_, std::back_inserter(missing_));
  std::ranges::move(other.warnings_, std::back_inserter(warnings_));
}

std::vector<std::uint32_t> Checkpoint::number_tensors() {
  if (parts_.size() == 1 && !derivation_) return parts_.front().header.by_name;
  auto [order, any_equal] =
      sorted_order(tensor_count(), [this](std::uint32_t number) { return name(number); });
  for (std::size_t i = 1; any_equal && i < order.size(); ++i) {
    if (name(order[i]) != name(order[i - 1])) continue;
    throw Error(ErrorCode::kUsage, part_of(order[i]).source->path(),
                "tensor " + in_quotes(name(order[i])) + ": " +
                    printable(part_of(order[i - 1]).source->path()) +
                    " has a tensor of this name too: use one of the two at a time");
  }
  return order;
}

MetadataItem Checkpoint::item_at(ItemPlace place) const {
  const Part& part = parts_[place.part];
  const auto [key, text] = part.header.metadata[place.entry];
  return {.key = key,
          .text = text,
          .value = part.header.metadata.value(place.entry),
          .source = part.source.get()};
}

MetadataItem Checkpoint::metadata_item(std::uint32_t i) const {
  MetadataItem item = item_at(items_[i]);
  const auto kept = item.value.type == ValueType::kArray ? arrays_.find(i) : arrays_.end();
  if (kept != arrays_.end()) item.array = &kept->second;
  return item;
}

void Checkpoint::merge_metadata() {
  std::size_t count = 0;
  for (const Part& part : parts_) count += part.header.metadata.size();
  items_.reserve(count);
  for (std::uint32_t i = 0; i < parts_.size(); ++i) {
    const Metadata& metadata = parts_[i].header.metadata;
    for (std::uint32_t j = 0; j < metadata.size(); ++j) {
      const std::string_view key = metadata[j].first;
      if (parts_[i].is_split && is_split_key(key)) continue;
      if (!std::ranges::binary_search(parts_[i].hidden_keys, key)) items_.push_back({i, j});
    }
  }
  const auto key_of = [this](ItemPlace place) {
    return parts_[place.part].header.metadata[place.entry].first;
  };
  if (parts_.size() > 1) std::ranges::stable_sort(items_, {}, key_of);
  auto to = items_.begin();
  for (auto first = items_.begin(); first != items_.end();) {
    const std::string_view key = key_of(*first);
    const auto last =
        std::find_if(first, items_.end(), [&](ItemPlace place) { return key_of(place) != key; });
    const MetadataItem item = item_at(*first);
    if (std::all_of(std::next(first), last,
                    [&](ItemPlace other) { return are_equal(item, item_at(other)); })) {
      *to++ = *first;
    } else {
      metadata_conflicts_.emplace_back(key);
    }
    first = last;
  }
  items_.erase(to, items_.end());
  for (const ItemPlace& place : items_) {
    const MetadataItem item = item_at(place);
    if (item.value.has_text) metadata_.emplace_back(item.key, item.text);
  }
  keep_arrays();
}

// Keeps the texts of arrays that would be read more than once: those of more than one step. Of a
// source that fetches, all are made ready now: stat(2) of a file waits for no network.
void Checkpoint::keep_arrays() {
  for (std::uint32_t i = 0; i < items_.size(); ++i) {
    const MetadataItem item = item_at(items_[i]);
    const bool is_remote = !item.source->is_complete();
    if (item.value.type != ValueType::kArray) continue;
    if (!is_remote && item.value.encoded.length <= ArrayText::kStep) continue;
    const ArrayText& array = arrays_.try_emplace(i, *item.source, item.value).first->second;
    if (const int error = is_remote ? array.prepare() : 0) {
      throw_read_failure(*item.source, item.source->path(), "key " + in_quotes(item.key), error);
    }
  }
}

std::size_t Checkpoint::part_number(std::uint32_t stored) const {
  return static_cast<std::size_t>(std::prev(std::ranges::upper_bound(first_, stored)) -
                                  first_.begin());
}

const Part& Checkpoint::part_of(std::uint32_t number) const {
  return parts_[part_number(stored_number(number))];
}

const TensorRecord& Checkpoint::record(std::uint32_t number) const {
  const std::uint32_t stored = stored_number(number);
  const std::size_t part = part_number(stored);
  return parts_[part].header.tensors[stored - first_[part]];
}

std::string_view Checkpoint::name(std::uint32_t number) const {
  if (derivation_ && derivation_->shown[number].set != Derivation::kStored) {
    const Derivation::Shown& shown = derivation_->shown[number];
    return derivation_->sets[shown.set]->name(shown.number);
  }
  const std::uint32_t stored = stored_number(number);
  const std::size_t part = part_number(stored);
  const Header& header = parts_[part].header;
  return header.name(header.tensors[stored - first_[part]]);
}

std::optional<Extent> Checkpoint::locator(std::uint32_t number) const {
  if (derivation_ && derivation_->shown[number].set != Derivation::kStored) return std::nullopt;
  const std::uint32_t stored = stored_number(number);
  const std::size_t at = part_number(stored);
  const TensorRecord& record = parts_[at].header.tensors[stored - first_[at]];
  return Extent{parts_[at].source.get(), record.offset, record.length};
}

Tensor Checkpoint::stored_tensor(std::uint32_t stored) const {
  const std::size_t at = part_number(stored);
  const Header& header = parts_[at].header;
  const TensorRecord& record = header.tensors[stored - first_[at]];
  return {.name = header.name(record),
          .path = {},
          .dtype = record.dtype,
          .shape = header.shape(record),
          .length = record.length,
          .locator = Extent{parts_[at].source.get(), record.offset, record.length}};
}

Tensor Checkpoint::tensor(std::uint32_t number) const {
  Tensor tensor{};
  if (derivation_ && derivation_->shown[number].set != Derivation::kStored) {
    const Derivation::Shown& shown = derivation_->shown[number];
    const ComputedTensors& set = *derivation_->sets[shown.set];
    tensor = {.name = set.name(shown.number),
              .path = {},
              .dtype = set.dtype(shown.number),
              .shape = set.shape(shown.number),
              .length = set.length(shown.number),
              .locator = std::nullopt,
              .computed = &set.tensor(shown.number)};
  } else {
    tensor = stored_tensor(stored_number(number));
  }
  if (tree_) tensor.path = tree_->path(number);
  return tensor;
}

std::optional<std::uint32_t> Checkpoint::find(std::string_view tensor_name) const {
  const auto number = std::ranges::lower_bound(
      by_name_, tensor_name, {}, [this](std::uint32_t tensor) { return name(tensor); });
  if (number == by_name_.end() || name(*number) != tensor_name) return std::nullopt;
  return *number;
}

std::vector<std::uint32_t> Checkpoint::match(std::span<const std::string> globs) const {
  std::vector<std::uint32_t> matching;
  std::string text;
  const auto matches = [&](const std::string& glob) {
    // fnmatch(3) would compare only up to the first NUL: no glob matches such a name, and a glob
    // with a NUL matches none.
    const auto has_nul = [](const std::string& of) { return of.find('\0') != std::string::npos; };
    return !has_nul(text) && !has_nul(glob) && ::fnmatch(glob.c_str(), text.c_str(), 0) == 0;
  };
  for (std::uint32_t i = 0; i < tensor_count(); ++i) {
    text = name(i);
    if (globs.empty() || std::ranges::any_of(globs, matches)) matching.push_back(i);
  }
  return matching;
}

}  // namespace stfs
