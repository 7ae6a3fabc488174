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

using Listed = decltype(SourceLists::listed);

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

TensorList stored(const std::string& path, const StoredOptions& options, Sources& opener,
                  Listed& listed) {
  StoredTensors stored = load_stored(path, options, opener);
  if (stored.names) listed.emplace(path, *std::move(stored.names));
  return std::move(stored.tensors);
}

LayerContext context_of(Sources& opener) {
  return {opener, [&opener](const std::string& source) {
            return load_sources(std::span(&source, 1), {}, {}, opener).list;
          }};
}

// All tensors of a mount of these sources.
TensorList list_of(const Origin& mounted, Sources& opener, Listed& listed) {
  TensorList list;
  for (const Origin& source : mounted.sources) {
    if (!source.path.empty()) {
      list.append(stored(source.path, {.allow_missing = mounted.allow_missing}, opener, listed));
      continue;
    }
    TensorList part = list_of(source, opener, listed);
    keep_within(part, source.within);
    list.append(std::move(part));
  }
  return apply_layers(std::move(list), mounted.layers, context_of(opener));
}

class Loader {
 public:
  Loader(const StoredOptions& options, const Layers& layers, Sources& opener)
      : options_(options), layers_(resolved(layers, opener)), opener_(opener) {}

  SourceLists load(std::span<const std::string> sources) {
    for (const std::string& source : sources) add(source);
    refuse_frames(out_.list);
    out_.list = apply_layers(std::move(out_.list), layers_, context_of(opener_));
    out_.layers = layers_;
    return std::move(out_);
  }

 private:
  void add(const std::string& source) {
    if (is_url(source)) {
      std::string pinned = opener_.pinned(source);
      take_delta(pinned);
      out_.list.append(stored(pinned, options_, opener_, out_.listed));
      out_.origins.push_back({.path = public_name(pinned)});
      return;
    }
    refuse_model_name(source);
    if (std::optional<MountedPath> mounted = find_mounted(source)) {
      return add_mounted(*std::move(mounted));
    }
    std::string name = source;
    take_delta(name);
    out_.list.append(stored(name, options_, opener_, out_.listed));
    std::error_code error;
    out_.origins.push_back({.path = fs::absolute(name, error).string()});
  }

  // A source that is a delta is the layer upon the checkpoint that it reaches.
  void take_delta(std::string& source) {
    const std::string named = public_name(source);
    const auto delta = delta_as_source(source, opener_);
    if (!delta) return;
    const std::string argument = resolved_delta(*delta, opener_);
    const auto other = std::ranges::find(layers_, kDeltaOption, &Layer::option);
    if (other != layers_.end() && other->argument != argument) {
      throw Error(ErrorCode::kUsage, named,
                  "is a delta, and so is " + printable(public_name(other->argument)) +
                      ": name one full checkpoint, and one version as -o delta=VERSION");
    }
    choose(layers_, kDeltaOption, argument);
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
      TensorList whole = list_of(origin, opener_, out_.listed);
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

  StoredOptions options_;
  Layers layers_;
  Sources& opener_;
  SourceLists out_;
};

}  // namespace

TensorList load_content(const MountContent& content, Sources& opener) {
  Listed listed;
  TensorList list = list_of(content.origin, opener, listed);
  if (version_of(list) != content.version) {
    throw Error(
        ErrorCode::kUnreadable, list.parts().empty() ? "" : list.parts().front().source->path(),
        "has changed, or another file that it is shown with, since it was named: load it again");
  }
  list.sort_names();
  return list;
}

SourceLists load_sources(std::span<const std::string> sources, const StoredOptions& options,
                         const Layers& layers, Sources& opener) {
  return Loader(options, layers, opener).load(sources);
}

}  // namespace stfs
