#include "core/checkpoint/follow.h"

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/checkpoint/checkpoint.h"
#include "core/format/gguf_split.h"
#include "core/format/guess.h"
#include "core/format/index.h"
#include "core/format/safetensors.h"
#include "core/remote/http/url.h"
#include "core/source/source.h"
#include "core/stored/directory.h"
#include "core/stored/missing_checkpoint.h"
#include "core/stored/tensor_list.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>
#include <utility>

namespace stfs {
namespace {

constexpr std::array<std::string_view, 5> kDirectories{"weight_v", "step_", "step-", "checkpoint-",
                                                       "iter_"};

// Returns true for names under which trainers write, before they rename the complete version.
bool is_temporary(std::string_view name) {
  constexpr std::array<std::string_view, 3> kWithin{".tmp", "-tmp", "_tmp"};
  return name.starts_with('.') || name.starts_with("tmp") || is_unfinished_name(name) ||
         std::ranges::any_of(kWithin, [&](std::string_view part) {
           return name.find(part) != std::string_view::npos;
         });
}

std::string mark_of(const Source& source) {
  return source.token() + " " + std::to_string(source.size()) + "\n";
}

// Returns a text that identifies the files of a version in their present state. Throws Error if the
// version is not complete.
std::string files_of_index(const std::string& path, Sources& sources) {
  const Index index = read_index(path, sources);
  std::string files = mark_of(*sources.open(path));
  std::vector<std::vector<std::string_view>> wanted(index.shards.size());
  for (const Index::Entry& entry : index.entries) {
    wanted[entry.shard].push_back(index.name(entry));
  }
  std::vector<std::string> shards;
  for (const std::string& shard : index.shards) {
    shards.push_back(child_name(parent_name(path), shard));
  }
  const std::vector<Sources::Opened> opened = sources.open_all(shards);
  for (std::size_t i = 0; i < shards.size(); ++i) {
    if (opened[i].error) throw Error(*opened[i].error);
    Header header = read_safetensors(*opened[i].source, shards[i]);
    std::size_t others = 0;
    if (!keep_names(header, wanted[i], others).empty()) {
      throw Error(ErrorCode::kMissingTensor, shards[i], "lacks a tensor that the index maps to it");
    }
    files += mark_of(*opened[i].source);
  }
  return files;
}

std::string files_of_file(std::string path, Sources& sources) {
  if (path.ends_with(kIndexSuffix)) return files_of_index(path, sources);
  if (path.ends_with(kFileSuffix)) {
    const auto source = sources.open(path);
    read_safetensors(*source, path);
    return mark_of(*source);
  }
  // Opens all parts of a split file.
  const Checkpoint checkpoint(std::span(&path, 1), {.sources = &sources});
  std::string files;
  for (const Part& part : checkpoint.parts()) files += mark_of(*part.source);
  return files;
}

}  // namespace

Follower::Follower(std::string directory, Sources& sources, Options options)
    : directory_(std::move(directory)),
      sources_(sources),
      options_(std::move(options)),
      cancelled_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  const std::string& marker = options_.marker;
  if (marker.find('/') != std::string::npos || marker == "." || marker == "..") {
    throw Error(ErrorCode::kUsage, marker, "not the name of a file in a version's directory");
  }
  while (directory_.size() > 1 && directory_.ends_with('/')) directory_.pop_back();
  watch();
}

// Inotify only shortens the waits. It reports nothing on network file systems, and the system may
// have no instance left.
void Follower::watch() {
  if (is_url(directory_)) return;
  changes_ = UniqueFd(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
  if (!changes_) return;
  constexpr auto kEvents = IN_CREATE | IN_MOVED_TO | IN_CLOSE_WRITE | IN_ATTRIB;
  ::inotify_add_watch(changes_.get(), directory_.c_str(), kEvents);
}

void Follower::wait() {
  // Wait at least `least`, even if events arrive all the time, so that two scans see a difference
  // if a file is still growing. poll(2) uses the monotonic clock.
  const int pause = static_cast<int>(options_.pause.count());
  const int least = pause / 5;
  std::array<pollfd, 2> polled{pollfd{cancelled_.get(), POLLIN, 0},
                               pollfd{changes_.get(), POLLIN, 0}};  // ignored if negative
  if (::poll(polled.data(), 1, least) != 0) return;
  const bool is_slow = is_url(directory_) && is_settled_;
  ::poll(polled.data(), 2, (is_slow ? 5 * pause : pause) - least);
  std::array<char, 4096> events{};
  while (changes_ && ::read(changes_.get(), events.data(), events.size()) > 0) {
  }
}

void Follower::cancel() {
  is_cancelled_ = true;
  ::eventfd_write(cancelled_.get(), 1);
}

std::optional<std::string> Follower::next() {
  for (;;) {
    if (is_cancelled_ || (options_.latest && has_given_)) return std::nullopt;
    if (!ready_.empty()) {
      std::string version = std::move(ready_.front());
      ready_.pop_front();
      has_given_ = true;
      return version;
    }
    if (looks_ > 0) wait();
    if (is_cancelled_) return std::nullopt;
    try {
      const std::vector<std::string> complete = look();
      ready_.assign(complete.begin(), complete.end());
      if (is_unreadable_) watch();  // the directory may be a new one with the same name
      is_unreadable_ = false;
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kUsage || !is_unreadable_) {
        is_unreadable_ = true;
        throw;
      }
    }
    if (options_.latest && looks_ > 1 && ready_.empty() && seen_.empty()) {
      throw Error(ErrorCode::kAbsent, public_name(directory_), "no complete version");
    }
  }
}

bool Follower::is_candidate(const std::string& entry) const {
  if (is_temporary(
          std::string_view(entry).substr(0, entry.size() - (entry.ends_with('/') ? 1 : 0))))
    return false;
  if (entry.ends_with('/')) {
    return std::ranges::any_of(kDirectories,
                               [&](std::string_view begin) { return entry.starts_with(begin); });
  }
  // A single file cannot contain the marker, and one shard is not a version.
  if (!options_.marker.empty() || !is_checkpoint_name(entry) || is_shard_name(entry)) return false;
  const std::optional<GgufPartName> part = gguf_part_name(entry);
  return !part || part->number == 0;
}

// Returns a text like files_of_index(), for an entry of the directory.
std::string Follower::files_of(const std::string& entry) {
  if (!entry.ends_with('/')) return files_of_file(child_name(directory_, entry), sources_);
  const std::string path = child_name(directory_, entry.substr(0, entry.size() - 1));
  const std::vector<std::string> names = sources_.entries_in(path);
  if (!options_.marker.empty() && std::ranges::find(names, options_.marker) == names.end()) {
    throw Error(ErrorCode::kAbsent, public_name(path), "no marker");
  }
  const Candidates candidates = candidates_of(names);
  const auto chosen = candidates.index() ? candidates.index() : candidates.file();
  if (!chosen) throw Error(ErrorCode::kAbsent, public_name(path), "no checkpoint");
  // A single shard is not complete, because the index is written last.
  if (is_shard_name(*chosen) && !chosen->ends_with("-00001-of-00001.safetensors")) {
    throw Error(ErrorCode::kAbsent, public_name(path), "no index");
  }
  return files_of_file(child_name(path, *chosen), sources_);
}

// Returns a text that changes if a complete version is replaced, after only a few calls. For a
// local version it describes the files with names of checkpoints. For the newest version on a
// server it is files_of(), and for older ones "".
std::string Follower::glance(const std::string& entry, bool is_newest) {
  if (is_url(directory_)) return is_newest ? files_of(entry) : "";
  namespace fs = std::filesystem;
  std::string marks;
  const auto add = [&](const fs::path& path) {
    struct stat status {};
    if (::stat(path.c_str(), &status) != 0) return;
    for (const auto number :
         {static_cast<std::int64_t>(status.st_dev), static_cast<std::int64_t>(status.st_ino),
          static_cast<std::int64_t>(status.st_mtim.tv_sec),
          static_cast<std::int64_t>(status.st_mtim.tv_nsec)}) {
      marks += std::to_string(number) + " ";
    }
    marks += std::to_string(status.st_size) + "\n";
  };
  const std::string path = child_name(directory_, entry);
  auto listing = sources_.names_in(path);
  if (!listing) {
    add(path);
    return marks;
  }
  std::vector<std::string>& names = *listing;
  std::erase_if(names, [](const std::string& name) { return !is_checkpoint_name(name); });
  std::ranges::sort(names);
  for (const std::string& name : names) add(fs::path(path) / name);
  return marks;
}

std::vector<std::string> Follower::look() {
  ++looks_;
  sources_.forget();
  std::vector<std::string> entries = sources_.entries_in(directory_);
  std::erase_if(entries, [&](const std::string& entry) { return !is_candidate(entry); });
  std::ranges::sort(entries, [](const std::string& a, const std::string& b) {
    return std::is_lt(natural_order(a, b));
  });
  if (options_.latest) std::ranges::reverse(entries);
  std::map<std::string, std::string> found;
  std::vector<std::string> complete;
  bool is_settled = true;
  for (const std::string& entry : entries) {
    const auto before = seen_.find(entry);
    try {
      std::string mark = options_.latest ? "" : glance(entry, &entry == &entries.back());
      if (before != seen_.end() && before->second.empty() &&
          (mark.empty() || mark == glances_[entry])) {
        found[entry] = "";
        continue;
      }
      glances_[entry] = std::move(mark);
      std::string files = files_of(entry);
      const bool is_unchanged = before != seen_.end() && before->second == files;
      if (is_unchanged && std::exchange(returned_[entry], files) != files) {
        const std::size_t length = entry.size() - (entry.ends_with('/') ? 1 : 0);
        complete.push_back(child_name(directory_, entry.substr(0, length)));
      }
      is_settled = is_settled && is_unchanged;
      found[entry] = is_unchanged ? "" : std::move(files);
      // With `latest`, stop at a complete version. Look at older versions only if this one changed
      // since the last scan, because then the trainer may still be writing it.
      if (options_.latest && (is_unchanged || seen_.empty())) break;
    } catch (const Error&) {
      continue;  // it is not complete, or was deleted since the directory was listed
    }
  }
  seen_ = std::move(found);
  is_settled_ = is_settled;
  return complete;
}

}  // namespace stfs
