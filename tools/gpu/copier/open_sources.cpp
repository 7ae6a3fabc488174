#include "tools/gpu/copier/open_sources.h"

#include "core/base/error.h"
#include "core/base/posix.h"
#include "core/checkpoint/source_lists.h"
#include "core/opened/read_failure.h"

#include <algorithm>
#include <cerrno>
#include <optional>

namespace stfs::gpu {
namespace {

bool is_current(const OpenCheckpoint& checkpoint) {
  return std::ranges::all_of(checkpoint.list.parts(), [](const Part& part) {
    return part.source->is_current() && part.source->verify() == 0;
  });
}

std::unique_ptr<const OpenCheckpoint> opened(const std::string& description, Sources& opener) {
  const std::optional<MountContent> content = parse_mount_json(description);
  if (!content) throw Error(ErrorCode::kUsage, "", "no description of a checkpoint");
  try {
    return std::make_unique<const OpenCheckpoint>(load_content(*content, opener));
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kAbsent) throw;
    throw Error(ErrorCode::kUnreadable, error.place(), error.message());
  }
}

}  // namespace

OpenSources::OpenSources(std::span<const Item> items, Sources* given, OpenCheckpoints* kept)
    : own_(given == nullptr ? std::make_unique<Sources>() : nullptr),
      checkpoints_(kept == nullptr ? own_checkpoints_ : *kept) {
  Sources& opener = given == nullptr ? *own_ : *given;
  open_files(items, opener);
  open_checkpoints(items, opener);
  for (const auto& [path, source] : sources_) all_.push_back(source.get());
  for (const auto& [description, checkpoint] : checkpoints_) {
    for (const Part& part : checkpoint->list.parts()) all_.push_back(part.source.get());
  }
}

OpenItem OpenSources::of(const Item& item) const {
  if (!item.request().computed) return {.source = sources_.at(item.request().path).get()};
  const OpenCheckpoint& checkpoint = *checkpoints_.at(*item.request().computed->checkpoint);
  return {.list = &checkpoint.list, .identities = &checkpoint.identities};
}

bool OpenSources::are_complete() const { return std::ranges::all_of(all_, &Source::is_complete); }

void OpenSources::verify() const {
  for (const Source* const source : all_) {
    if (const int error = source->verify()) fail(source->path(), error);
  }
}

void OpenSources::fail(const std::string& path, int error) const {
  // A tile may have bytes of several sources. Put the source with this path first.
  std::vector<const Source*> sources = all_;
  std::stable_partition(sources.begin(), sources.end(),
                        [&](const Source* s) { return s->path() == path; });
  throw read_failure(sources, "", error);
}

void OpenSources::open_files(std::span<const Item> items, Sources& opener) {
  std::vector<std::string> paths;
  for (const Item& item : items) {
    if (item.request().computed) continue;
    if (sources_.try_emplace(item.request().path).second) paths.push_back(item.request().path);
  }
  std::vector<Sources::Opened> opened = opener.open_all(paths);
  for (std::size_t i = 0; i < paths.size(); ++i) {
    // The source existed when it was named, so its absence is not a mistake of the user.
    if (opened[i].error && opened[i].error->code() == ErrorCode::kAbsent) {
      throw Error(ErrorCode::kUnreadable, paths[i], opened[i].error->message());
    }
    if (opened[i].error) throw Error(*opened[i].error);
    sources_[paths[i]] = std::move(opened[i].source);
  }
  for (const Item& item : items) {
    const ItemRequest& request = item.request();
    if (request.computed || sources_.at(request.path)->token() == request.version) continue;
    throw Error(ErrorCode::kUnreadable, request.path,
                "has changed since it was named: load it again");
  }
}

void OpenSources::open_checkpoints(std::span<const Item> items, Sources& opener) {
  OpenCheckpoints used;
  const std::string* last = nullptr;
  for (const Item& item : items) {
    if (!item.request().computed) continue;
    const std::string& description = *item.request().computed->checkpoint;
    if (&description == last) continue;
    last = &description;
    auto& checkpoint = used[description];
    if (checkpoint != nullptr) continue;
    checkpoint = std::move(checkpoints_[description]);
    if (checkpoint == nullptr || !is_current(*checkpoint)) checkpoint = opened(description, opener);
  }
  checkpoints_ = std::move(used);
}

}  // namespace stfs::gpu
