// Opens sources by name, wherever they are: files of the local disk, and objects of stores. All
// that a process needs for remote sources hangs on this: the cache, the network, credentials.
//
// A supervisor must not use the network (libcurl does not survive a fork). So a short-lived child
// loads the checkpoint first, and resolutions() of the child, given to the Sources of the
// supervisor, makes it find the same versions and listings without asking.
//
// Thread safety: all members. Lifetime: outlives the sources that it opens.
#pragma once

#include "core/source/counters.h"
#include "core/source/source.h"

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace stfs {

// The options of remote sources, the same for each command.
struct SourceOptions {
  std::string cache_dir = {};    // "": STFS_CACHE, or the user's cache directory
  std::uint64_t cache_size = 0;  // bytes; 0: bounded by the disk alone
  unsigned connections = 8;
  unsigned timeout = 60;  // seconds
  bool offline = false;   // HF_HUB_OFFLINE means so too
  bool insecure_http = false;
  Counters* counters = nullptr;  // null: its own
};

class Sources {
 public:
  explicit Sources(const SourceOptions& options = {});
  Sources(const Sources&) = delete;
  Sources& operator=(const Sources&) = delete;
  virtual ~Sources();

  // Opens a file or an object. Throws Error kAbsent (no such file or object) or kUnreadable.
  virtual std::unique_ptr<const Source> open(const std::string& name);

  // Opens many at once, each with its first block (with all of it, when that is `whole`), so that N
  // remote ones cost few round trips one after the other. In the order of `names`; an Error stands
  // where the source could not be opened.
  struct Opened {
    std::unique_ptr<const Source> source;
    std::optional<Error> error;
  };
  std::vector<Opened> open_all(std::span<const std::string> names);

  // The names in a directory, unsorted; nullopt for a file. Throws Error kAbsent or kUnreadable.
  std::optional<std::vector<std::string>> names_in(const std::string& name);
  // The text of a small file. Throws Error; kUnreadable over `limit` bytes.
  std::string read_file(const std::string& name, std::uint64_t limit);

  // The name with what can be pinned (hf://org/name@COMMIT); a local one as it stands.
  std::string pinned(const std::string& name);

  // What was found out, as one JSON text with secrets, and blocks that no cache could keep: for
  // memory only. A Sources that is given it asks nobody about these names.
  std::string resolutions() const;
  void use(std::string_view resolutions);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace stfs
