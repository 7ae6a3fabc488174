#include "core/checkpoint/source_lists.h"

#include "core/base/error.h"
#include "core/checkpoint/tree.h"
#include "core/layer/delta/delta_layer.h"
#include "core/remote/http/url.h"
#include "core/stored/absent.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <system_error>
#include <utility>

namespace stfs {
namespace {

namespace fs = std::filesystem;

// Leaves the tensors at or below a path in a mount of this list; "" leaves all.
void keep_within(TensorList& list, const std::string& within) {
  if (within.empty()) return;
  list.sort_names();
  const bool is_dotted = is_at_or_below(within, kTreeView);
  const std::string path =
      is_dotted ? within.substr(std::min(within.size(), kTreeView.size() + 1)) : within;
  const PathTree tree = is_dotted ? dotted_tree_of(list) : tree_of(list);
  std::vector<bool> is_kept(list.size());
  for (std::uint32_t i = 0; i < list.size(); ++i) {
    is_kept[i] = path.empty() || is_at_or_below(tree.path(i), path);
  }
  list.remove_others(is_kept);
}

class Loader {
 public:
  Loader(const StoredOptions& options, const Layers& layers, Sources& opener)
      : options_(options), layers_(resolved(layers, opener)), opener_(opener) {}

  SourceLists load(std::span<const std::string> sources) {
    for (const std::string& source : sources) add(source);
    out_.list = apply_layers(std::move(out_.list), layers_, {opener_});
    out_.layers = layers_;
    return std::move(out_);
  }

 private:
  void add(const std::string& source) {
    if (is_url(source)) {
      std::string pinned = opener_.pinned(source);
      take_delta(pinned);
      out_.list.append(stored(pinned, options_));
      out_.origins.push_back({.path = public_name(pinned)});
      return;
    }
    refuse_model_name(source);
    if (std::optional<MountedPath> mounted = find_mounted(source)) {
      return add_mounted(*std::move(mounted));
    }
    std::string name = source;
    take_delta(name);
    out_.list.append(stored(name, options_));
    std::error_code error;
    out_.origins.push_back({.path = fs::absolute(name, error).string()});
  }

  // A source that is a delta is the layer upon the checkpoint that it reaches.
  void take_delta(std::string& source) {
    if (const auto delta = delta_as_source(source, opener_)) {
      choose(layers_, kDeltaOption, resolved_delta(*delta, opener_));
    }
  }

  TensorList stored(const std::string& path, const StoredOptions& options) {
    StoredTensors stored = load_stored(path, options, opener_);
    if (stored.names) out_.listed.emplace(path, *std::move(stored.names));
    return std::move(stored.tensors);
  }

  void add_mounted(MountedPath mounted) {
    // Since the mount was asked, a link to a source may have given it another token: ask again.
    constexpr unsigned kMostLooks = 50;
    for (unsigned looks = 1; !add_if_current(mounted); ++looks) {
      std::optional<MountedPath> now = find_mounted(mounted.source);
      if (!now || now->version == mounted.version || looks == kMostLooks) refuse_changed(mounted);
      mounted = *std::move(now);
    }
  }

  // Returns false when the sources are not the versions that the mount has named.
  bool add_if_current(const MountedPath& mounted) {
    const Origin& origin = mounted.origin;
    for (const Layer& layer : layers_) refuse_unfit_layer(mounted, layer);
    try {
      TensorList whole = list_of(origin);
      if (version_of(whole) != mounted.version) return false;
      keep_within(whole, origin.within);
      out_.list.append(std::move(whole));
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kUsage) throw;  // about the command
      refuse_lost(mounted, error);
    }
    if (origin.within.empty() && origin.allow_missing == options_.allow_missing &&
        origin.layers.empty()) {
      out_.origins.insert(out_.origins.end(), origin.sources.begin(), origin.sources.end());
    } else {
      out_.origins.push_back(origin);
    }
    return true;
  }

  // All tensors of a mount of these sources.
  TensorList list_of(const Origin& mounted) {
    TensorList list;
    for (const Origin& source : mounted.sources) {
      if (!source.path.empty()) {
        const StoredOptions options{.allow_missing = mounted.allow_missing};
        list.append(stored(source.path, options));
        continue;
      }
      TensorList part = list_of(source);
      keep_within(part, source.within);
      list.append(std::move(part));
    }
    return apply_layers(std::move(list), mounted.layers, {opener_});
  }

  StoredOptions options_;
  Layers layers_;
  Sources& opener_;
  SourceLists out_;
};

}  // namespace

SourceLists load_sources(std::span<const std::string> sources, const StoredOptions& options,
                         const Layers& layers, Sources& opener) {
  return Loader(options, layers, opener).load(sources);
}

}  // namespace stfs
