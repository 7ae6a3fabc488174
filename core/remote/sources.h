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
#include "core/remote/stores/hub_name.h"
#include "core/remote/stores/remote.h"
#include "core/remote/stores/s3.h"
#include "core/source/counters.h"
#include "core/source/source.h"

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
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
  S3Options s3 = {};
  std::uint64_t memory = 256 << 20;  // bytes of changed positions that a delta may keep
  Counters* counters = nullptr;      // null: its own
  // Takes a line for the user, each once: a cache that cannot be used, a version that is told by
  // time and size alone. Called by any thread, one at a time.
  std::function<void(const std::string& line)> warn = nullptr;
  // Takes each local file that is opened or read, and may throw to refuse it. Called by any thread.
  std::function<void(const std::string& path)> reads = nullptr;
  // Called by open_all() after each remote source, by any thread, one at a time.
  std::function<void(std::size_t opened, std::size_t all)> progress = nullptr;
};

// The options with what the environment adds, for a process that may have another one: the cache's
// directory, absolute, and whether the Hub's variable says offline.
SourceOptions resolved(SourceOptions options);

class Cache;
class Fetcher;
class Http;
class Store;

// The facts found about a name.
struct SourceFacts {
  std::optional<std::string> pinned = {};
  bool is_file = false;    // a store said so
  bool is_absent = false;  // a store said so; not remembered by the cache
  std::optional<std::vector<std::string>> listing = {};
  std::optional<RemoteVersion> version = {};
  std::string first = {};  // bytes that no cache holds
};

class Sources {
 public:
  explicit Sources(SourceOptions options = {});
  Sources(const Sources&) = delete;
  Sources& operator=(const Sources&) = delete;
  virtual ~Sources();

  // Opens a file or an object. Throws Error: kAbsent (no such file or object), kUnreadable, or
  // kUsage for a URL that no store takes. Virtual, so that a test can give sources of its own.
  virtual std::unique_ptr<const Source> open(const std::string& name);

  // The local files that were opened or read so far, and those of the Hub's own cache that were
  // looked at for remote sources. forget() empties the list.
  std::vector<std::string> files_read() const;
  void note_read(const std::string& path);
  std::uint64_t memory() const { return options_.memory; }

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
  // The names of the files and directories in a directory, those of directories with a slash at the
  // end, unsorted. Throws Error as open() does, and kUsage for a directory of a web server.
  std::vector<std::string> entries_in(const std::string& directory);
  // What stores said of names is asked for again, also what a branch of the Hub means. Sources that
  // were opened stay what they are.
  void forget();
  // The text of a small file. Throws Error; kUnreadable over `limit` bytes.
  std::string read_file(const std::string& name, std::uint64_t limit);

  // How much was made in the cache, entries and names; removes what was made since, and what nobody
  // uses. For loading that fails, also in the midst of another.
  std::size_t made() const;
  void remove_created_since(std::size_t made);

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
  Http& http();
  Cache& cache();
  Fetcher& fetcher();
  Store& store(const std::string& name);

  void warn(const std::string& line);
  void warn_of_unused_copy(const Error& error);
  std::optional<SourceFacts> given(const std::string& name);
  SourceFacts recalled(const std::string& name);
  template <class Change>
  void learn(const std::string& name, const Change& change);
  [[noreturn]] void refuse_to_ask(const std::string& name) const;
  std::chrono::seconds timeout() const { return std::chrono::seconds(options_.timeout); }
  bool may_ask() const { return !options_.offline && !network_is_closed_; }
  static bool is_version_of(const SourceFacts& known, const Source& source);
  bool is_cached(const RemoteVersion& version, std::uint64_t length);
  std::uint64_t end_not_cached(const RemoteVersion& version, const Source& source,
                               std::uint64_t length);
  void keep_if_not_cached(const Source& source, std::string_view first);
  std::unique_ptr<const Source> open_remote(const std::string& name, When when);
  std::unique_ptr<const Source> make(const std::string& name, const RemoteVersion& version,
                                     std::string_view first, When when);
  std::unique_ptr<const Source> make_from_copy(const std::string& name,
                                               const RemoteVersion* version);
  std::optional<std::string> pinned_offline(const std::string& name);
  std::optional<std::vector<std::string>> local_listing(const std::string& name) const;

  SourceOptions options_;
  const bool is_offline_for_hub_;
  Counters own_counters_;
  bool network_is_closed_ = false;

  std::once_flag http_once_, cache_once_, fetcher_once_;
  // Destroyed from the last to the first: each uses those before it.
  std::unique_ptr<Http> http_;
  std::unique_ptr<Cache> cache_;
  std::mutex stores_mutex_;
  std::map<std::string, std::unique_ptr<Store>, std::less<>> stores_;  // by scheme
  std::unique_ptr<Fetcher> fetcher_;

  mutable std::mutex known_mutex_;
  std::map<std::string, SourceFacts> known_;      // by name, with its secrets
  std::map<std::string, HubName> offline_roots_;  // pinned names of models, by ID@REVISION
  // An entry of the cache, by its ID, or what it remembers of a name.
  struct Made {
    std::string id, name;
  };
  std::vector<Made> made_;
  std::set<std::string> files_read_;
  std::atomic<bool> is_remote_ = false;  // a remote source was opened
  // Bytes of remote sources by path, token and offset. Constant once network_is_closed_ is true.
  std::map<std::string, std::string> parts_;
  std::size_t parts_bytes_ = 0;
  std::mutex callback_mutex_;       // of the functions in options_
  std::set<std::string> warnings_;  // that the user has seen
};

}  // namespace stfs
