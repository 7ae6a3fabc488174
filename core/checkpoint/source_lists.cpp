#include "core/checkpoint/source_lists.h"

#include "core/base/error.h"
#include "core/base/posix.h"
#include "core/checkpoint/tree.h"
#include "core/layer/delta/delta_layer.h"
#include "core/remote/http/url.h"
#include "core/stored/missing_checkpoint.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <system_error>
#include <utility>

namespace stfs {
namespace {

namespace fs = std::filesystem;

// Keeps only the tensors at or below a path in a mount of this list. "" keeps all tensors.
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
  // The mounts and layers through which the sources were reached.
  struct Way {
    unsigned depth = 0;        // the number of mounts and layers on the way to the sources
    bool is_in_mount = false;  // at least one of them is a mount
    Layers above = {};         // the layers that are applied to the tensors of that mount
  };

  // Adds the paths of opened mounts to `mounts` (SourceLists::mounts).
  Loader(const StoredOptions& options, const Layers& layers, Sources& opener,
         std::vector<std::string>& mounts, Way way)
      : options_(options),
        layers_(resolved(layers, opener)),
        opener_(opener),
        mounts_(mounts),
        way_(std::move(way)) {}

  SourceLists load(std::span<const std::string> sources) {
    for (const std::string& source : sources) add(source);
    refuse_frames(out_.list);
    const LayerContext context{
        opener_, [this](const std::string& source) {
          const Way way{.depth = way_.depth + 1, .is_in_mount = way_.is_in_mount};
          return Loader({}, {}, opener_, mounts_, way).load(std::span(&source, 1)).list;
        }};
    out_.list = apply_layers(std::move(out_.list), layers_, context);
    out_.layers = layers_;
    out_.is_one_checkpoint = out_.is_one_checkpoint && sources.size() == 1;
    return std::move(out_);
  }

 private:
  void add(const std::string& source) {
    if (is_url(source)) {
      std::string pinned = opener_.pinned(source);
      take_delta(pinned);
      add_stored(pinned);
      out_.origins.push_back(public_name(pinned));
      return;
    }
    refuse_model_name(source);
    if (std::optional<MountSource> mounted = find_mount_source(source)) {
      return add_mounted(*std::move(mounted));
    }
    std::string name = source;
    take_delta(name);
    add_stored(name);
    out_.origins.push_back(absolute(name));
  }

  void add_stored(const std::string& path) {
    StoredTensors stored = load_stored(path, options_, opener_);
    if (stored.names) out_.listed.emplace(path, *std::move(stored.names));
    out_.list.append(std::move(stored.tensors));
  }

  // If a source is a delta, replaces it by the checkpoint that the delta applies to, and adds the
  // delta as a layer.
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

  void add_mounted(MountSource mounted) {
    // After the mount's attribute was read, a new link to a source may have changed the source's
    // token, so read the attribute again.
    constexpr unsigned kMaxLooks = 50;
    for (unsigned looks = 1; !add_if_current(mounted); ++looks) {
      std::optional<MountSource> now = find_mount_source(mounted.source);
      if (!now || now->content.version == mounted.content.version || looks == kMaxLooks) {
        refuse_changed(mounted);
      }
      mounted = *std::move(now);
    }
  }

  // Returns false if the sources are not the versions that the mount's attribute names.
  bool add_if_current(const MountSource& mounted) {
    const MountContent& content = mounted.content;
    Layers above = layers_;
    above.insert(above.end(), way_.above.begin(), way_.above.end());
    std::erase_if(above, [&](const Layer& layer) { return has_layer(mounted, layer); });
    if (way_.depth >= kMaxMounts) {
      throw Error(ErrorCode::kUsage, mounted.source,
                  "mounts of mounts are nested too deeply: name the checkpoint itself");
    }
    mounts_.push_back(absolute(mounted.source));
    mounts_.push_back(absolute_path(mounted.source));
    try {
      const Way way{.depth = way_.depth + 1, .is_in_mount = true, .above = std::move(above)};
      SourceLists whole =
          Loader({.allow_missing = content.allow_missing}, content.layers, opener_, mounts_, way)
              .load(content.sources);
      if (version_of(whole.list) != content.version) return false;
      keep_within(whole.list, mounted.within);
      out_.list.append(std::move(whole.list));
      out_.below.insert(out_.below.end(), whole.layers.begin(), whole.layers.end());
      out_.below.insert(out_.below.end(), whole.below.begin(), whole.below.end());
      out_.is_one_checkpoint = whole.is_one_checkpoint && mounted.within.empty();
      if (whole.listed) out_.listed = std::move(whole.listed);
    } catch (const Error& error) {
      // A usage error is about the command. If mounts are nested, only the error about the mount
      // that the user named says what to do.
      if (error.code() == ErrorCode::kUsage || way_.is_in_mount) throw;
      refuse_lost(mounted, error);
    }
    out_.origins.push_back(absolute(mounted.source));
    return true;
  }

  static std::string absolute(const std::string& path) {
    std::error_code error;
    return fs::absolute(path, error).string();
  }

  StoredOptions options_;
  Layers layers_;
  Sources& opener_;
  std::vector<std::string>& mounts_;
  Way way_;
  SourceLists out_;
};

}  // namespace

TensorList load_content(const MountContent& content, Sources& opener) {
  TensorList list = load_sources(content.sources, {.allow_missing = content.allow_missing},
                                 content.layers, opener)
                        .list;
  if (version_of(list) != content.version) {
    throw Error(
        ErrorCode::kUnreadable, list.parts().empty() ? "" : list.parts().front().source->path(),
        "this or another file of the checkpoint has changed since it was named: load it again");
  }
  list.sort_names();
  return list;
}

SourceLists load_sources(std::span<const std::string> sources, const StoredOptions& options,
                         const Layers& layers, Sources& opener) {
  std::vector<std::string> mounts;
  SourceLists lists = Loader(options, layers, opener, mounts, {}).load(sources);
  lists.mounts = std::move(mounts);
  return lists;
}

}  // namespace stfs
