#include "core/checkpoint/checkpoint.h"

#include "core/base/error.h"
#include "core/base/posix.h"
#include "core/base/text.h"
#include "core/checkpoint/config_facts.h"
#include "core/format/format.h"
#include "core/format/gguf.h"
#include "core/format/gguf_split.h"
#include "core/format/torch.h"
#include "core/layer/quantised/quantised_layer.h"
#include "core/remote/http/url.h"

#include <algorithm>
#include <iterator>

namespace stfs {
namespace {

std::optional<DType> dequantized_type_of(const Layers& layers) {
  const auto layer = std::ranges::find(layers, kDequantizeOption, &Layer::option);
  return layer == layers.end() ? std::nullopt : dequantized_type(layer->argument);
}

// Returns true if the checkpoint is from MLX, which uses its own names for the tensors. Only MLX
// stores weights in 32-bit words with a tensor "scales" beside them.
bool is_of_mlx(Parts parts) {
  const auto has = [&](const std::string& name) {
    return std::ranges::any_of(parts, [&](const Part& part) {
      return std::ranges::binary_search(
          part.header.by_name, std::string_view(name), {},
          [&](auto i) { return part.header.name(part.header.tensors[i]); });
    });
  };
  return std::ranges::any_of(parts, [&](const Part& part) {
    const auto format = part.header.metadata.find("format");
    if (format && part.header.metadata[*format].second == "mlx") return true;
    return std::ranges::any_of(part.header.tensors, [&](const TensorRecord& tensor) {
      constexpr std::string_view kWeight = ".weight";
      const std::string_view name = part.header.name(tensor);
      if (tensor.dtype != DType::kU32 || !name.ends_with(kWeight)) return false;
      return has(std::string(name.substr(0, name.size() - kWeight.size())) + ".scales");
    });
  });
}

}  // namespace

Checkpoint::Checkpoint(std::span<const std::string> sources, const LoadOptions& options) {
  if (options.sources == nullptr) own_sources_ = std::make_unique<Sources>();
  Sources& opener = options.sources == nullptr ? *own_sources_ : *options.sources;
  const std::size_t made = opener.made();
  try {
    load(sources, options, opener);
  } catch (...) {
    // Release the opened sources first, because they hold their cache entries.
    model_files_.clear();
    list_ = {};
    opener.remove_created_since(made);
    throw;
  }
  if (options.warn) {
    std::ranges::for_each(options.warns_of_refused_alone ? list_.refused() : warnings(),
                          options.warn);
  }
}

void Checkpoint::load(std::span<const std::string> sources, const LoadOptions& options,
                      Sources& opener) {
  SourceLists loaded = load_sources(sources,
                                    {.allow_missing = options.allow_missing,
                                     .alone = options.alone,
                                     .missing_hint = options.missing_hint},
                                    options.layers, opener);
  list_ = std::move(loaded.list);
  origins_ = std::move(loaded.origins);
  mounts_ = std::move(loaded.mounts);
  layers_ = std::move(loaded.layers);
  list_.sort_names();
  tree_ = std::make_unique<const PathTree>(tree_of(list_));
  merge_metadata();
  if (options.with_model_files) open_model_files(loaded, opener, options.others_may_read);
}

void Checkpoint::open_model_files(SourceLists& loaded, Sources& opener, bool others_may_read) {
  if (parts().empty() || !loaded.is_one_checkpoint || is_of_mlx(parts())) return;
  // The first part belongs to the one source, because the inputs of layers come after its parts.
  // GGUF and NumPy files use other names than the model's code.
  const std::string_view format = parts().front().format->name;
  if (format != kSafetensorsName && format != kTorchName) return;
  const std::string& directory = parts().front().directory;
  std::optional<std::vector<std::string>> names;
  if (loaded.listed && directory == loaded.listed->first) {
    names = std::move(loaded.listed->second);
  } else if (!is_url(directory)) {
    names = opener.names_in(directory.empty() ? "." : directory);
  } else if (scheme_of(directory) == "hf") {  // the store has all names of the model already
    names = opener.names_in(directory);
  }
  // The type of dequantised weights, if a layer of this checkpoint or of a mount dequantises them.
  // Other layers leave quantised weights quantised.
  std::optional<DType> computed = dequantized_type_of(layers_);
  if (!computed) computed = dequantized_type_of(loaded.below);
  ModelFiles found = stfs::open_model_files(directory, names, ConfigFacts(list_, computed),
                                            others_may_read, opener);
  model_files_ = std::move(found.files);
  for (std::string& line : found.warnings) list_.add_warning(std::move(line));
}

std::vector<const Source*> Checkpoint::sources() const {
  std::vector<const Source*> sources;
  for (const Part& part : parts()) sources.push_back(part.source.get());
  for (const ModelFile& file : model_files_) sources.push_back(file.source.get());
  return sources;
}

Tensor Checkpoint::tensor(std::uint32_t number) const {
  Tensor tensor = list_.tensor(number);
  tensor.path = tree_->path(number);
  return tensor;
}

const Source* Checkpoint::single_file(std::string_view format) const {
  const bool is_single = !list_.is_layered() && parts().size() == 1 && parts().front().is_whole &&
                         parts().front().format->name == format;
  return is_single ? parts().front().source.get() : nullptr;
}

MetadataItem Checkpoint::item_at(ItemPlace place) const {
  const Part& part = parts()[place.part];
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
  for (const Part& part : parts()) count += part.header.metadata.size();
  items_.reserve(count);
  for (std::uint32_t i = 0; i < parts().size(); ++i) {
    const Metadata& metadata = parts()[i].header.metadata;
    for (std::uint32_t j = 0; j < metadata.size(); ++j) {
      const std::string_view key = metadata[j].first;
      if (parts()[i].is_split && is_split_key(key)) continue;
      if (!std::ranges::binary_search(parts()[i].hidden_keys, key)) items_.push_back({i, j});
    }
  }
  const auto key_of = [this](ItemPlace place) {
    return parts()[place.part].header.metadata[place.entry].first;
  };
  if (parts().size() > 1) std::ranges::stable_sort(items_, {}, key_of);
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

// Keeps the texts of arrays that would be read more than once, which are the arrays of more than
// ArrayText::kStep bytes. For a remote source, prepares all texts now, so that stat(2) of a file
// does not wait for the network.
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

bool are_copies_current(const Checkpoint& checkpoint) {
  return std::ranges::all_of(checkpoint.parts(),
                             [](const Part& part) { return !part.source->is_stale_copy(); });
}

}  // namespace stfs
