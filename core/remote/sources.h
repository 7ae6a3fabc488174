// Opens sources by name, wherever they are: files of the local disk, and objects of stores. All
// that a process needs for remote sources hangs on this: the cache, the network, credentials. It is
// made when the first remote name is opened.
//
// A supervisor must not use the network (libcurl does not survive a fork). So a short-lived child
// loads the checkpoint first, and resolutions() of the child, given to the Sources of the
// supervisor, makes it find the same versions and listings without asking.
//
// Thread safety: all members. Lifetime: outlives the sources that it opens.
#pragma once

#include "core/base/error.h"
#include "core/source/counters.h"
#include "core/source/source.h"

#include <cstddef>
#include <cstdint>
#include <functional>
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
  unsigned timeout = 60;  // seconds that a read waits, and an opening for an answer
  bool offline = false;   // HF_HUB_OFFLINE means so too
  bool insecure_http = false;
  Counters* counters = nullptr;  // null: its own
  // Takes a line for the user, each once: a cache that cannot be used, a version that is told by
  // time and size alone. Called by any thread, one at a time.
  std::function<void(const std::string& line)> warn = nullptr;
  // Called by open_all() after each remote source, by any thread, one at a time.
  std::function<void(std::size_t opened, std::size_t all)> progress = nullptr;
};

// The options with what the environment adds, for a process that may have another one: the cache's
// directory, absolute, and whether the Hub's variable says offline.
SourceOptions resolved(SourceOptions options);

class Sources {
 public:
  explicit Sources(SourceOptions options = {});
  Sources(const Sources&) = delete;
  Sources& operator=(const Sources&) = delete;
  virtual ~Sources();

  // Opens a file or an object. Throws Error: kAbsent (no such file or object), kUnreadable, or
  // kUsage for a URL that no store takes. Virtual, so that a test can give sources of its own.
  virtual std::unique_ptr<const Source> open(const std::string& name);

  // The files of the Hub's own cache that were looked at for remote sources so far.
  std::vector<std::string> hub_copies() const;
  // The directory of the cache of remote sources; "" when none was opened.
  std::string cache_directory() const;

  // Opens many: local ones in their order, and remote ones many at once, each with its first block,
  // so that N of them cost few round trips one after the other. In the order of `names`; an Error
  // stands where a source could not be opened.
  struct Opened {
    std::unique_ptr<const Source> source;
    std::optional<Error> error;
  };
  // kLater: fetches nothing, and asks a store for the version alone, for 5 s at most; for files
  // that are perhaps never read.
  enum class When { kNow, kLater };
  std::vector<Opened> open_all(std::span<const std::string> names, When when = When::kNow);

  // The names in a directory, unsorted; nullopt for a file. Throws Error as open() does.
  std::optional<std::vector<std::string>> names_in(const std::string& name);
  // The text of a small file. Throws Error; kUnreadable over `limit` bytes.
  virtual std::string read_file(const std::string& name, std::uint64_t limit);

  // How many entries of the cache were made; removes those that were made since, and that nobody
  // uses. For loading that fails, also in the midst of another.
  std::size_t made() const;
  void remove_made_since(std::size_t made);

  // Reads a few bytes that loading needs beside headers, as Source::read: of a remote source,
  // resolutions() has them.
  int read(const Source& source, std::uint64_t offset, std::span<std::byte> out);

  // The name with what can be pinned (hf://org/name@COMMIT); a local one as it stands.
  std::string pinned(const std::string& name);

  // The first bytes of a source, of which loading it reads a part or all.
  struct Beginning {
    const Source* source;
    std::uint64_t length;  // bytes
  };
  // The resolved names, with secrets, and those beginnings that no cache holds: for memory only.
  // Throws Error kUnreadable when they are larger than a source without a cache can be.
  std::string resolutions(std::span<const Beginning> beginnings);
  // From now on this Sources asks nobody: a name that the resolutions lack is an Error, and bytes
  // that are not here fail to be read. Throws Error kUnreadable for a text that is none.
  void use(std::string_view resolutions);
  // The sources of a Sources that uses resolutions may fetch from now on: in a worker.
  void start_fetching();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace stfs
