// Opens sources by name: local files, and objects of remote stores. A Sources owns everything that
// a process needs for remote sources, such as the cache, the HTTP client and the stores with their
// credentials. These are made when the first remote name is opened.
//
// A supervisor must not use the network, because libcurl does not survive a fork. So a short-lived
// child loads the checkpoint first. The supervisor passes the child's resolutions() to its own
// Sources with use(), which then finds the same versions and listings without the network.
//
// Thread safety: all members may be called from any thread. Lifetime: it must outlive the sources
// that it opens.
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
  std::uint64_t cache_size = 0;  // bytes; 0: bounded only by the disk
  unsigned connections = 8;      // per host
  // Seconds that a read waits for its bytes, and that opening a source waits for a response.
  unsigned timeout = 60;
  bool offline = false;  // HF_HUB_OFFLINE has the same effect
  bool insecure_http = false;
  S3Options s3 = {};
  std::uint64_t memory = 256 << 20;  // bytes of changed positions that a delta may keep
  Counters* counters = nullptr;      // must outlive the Sources; null: it uses its own counters
  // Called with each warning for the user once, for instance if the cache cannot be used, or if
  // only time and size identify a version. Any thread may call it, but only one at a time.
  std::function<void(const std::string& line)> warn = nullptr;
  // Called with the path of each local file that is opened or read. May throw to refuse the file.
  // Several threads may call it at the same time.
  std::function<void(const std::string& path)> reads = nullptr;
  // open_all() calls it after each remote source. Any thread may call it, but only one at a time.
  std::function<void(std::size_t opened, std::size_t all)> progress = nullptr;
};

// Returns the options with the settings of the environment filled in, for a process that may have
// another environment: the absolute path of the cache's directory, and `offline` if the Hub's
// variable sets it.
SourceOptions resolved(SourceOptions options);

class Cache;
class Fetcher;
class Http;
class Store;

// What stores or the cache have reported about a name.
struct SourceFacts {
  std::optional<std::string> pinned = {};
  bool is_file = false;    // a store reported that the name is a file
  bool is_absent = false;  // a store reported that the name does not exist; not stored in the cache
  std::optional<std::vector<std::string>> listing = {};
  std::optional<RemoteVersion> version = {};
  std::string first = {};  // the first bytes of the source that are not in the cache
};

class Sources {
 public:
  explicit Sources(SourceOptions options = {});
  Sources(const Sources&) = delete;
  Sources& operator=(const Sources&) = delete;
  virtual ~Sources();

  // Opens a file or an object. Throws Error kAbsent if there is no such file or object,
  // kUnreadable, or kUsage for a URL that no store accepts. It is virtual so that tests can return
  // other sources.
  virtual std::unique_ptr<const Source> open(const std::string& name);

  // Returns the local files that were opened or read so far, including the files of the Hub's own
  // cache that were checked for remote sources. forget() empties the list.
  std::vector<std::string> files_read() const;
  void note_read(const std::string& path);
  std::uint64_t memory() const { return options_.memory; }

  // Returns the directory of the cache of remote sources, or "" if no cache was opened.
  std::string cache_directory() const;

  // Opens several sources. Local sources are opened one after the other. Remote sources are opened
  // in parallel and each fetches its first block, so that N sources cost only a few successive
  // round trips. The result has the order of `names`; `error` is set if a source could not be
  // opened.
  struct Opened {
    std::unique_ptr<const Source> source;
    std::optional<Error> error;
  };
  // kLater is for files that are perhaps never read: the store is asked only for the version, for
  // at most 5 s or a quarter of the timeout, and no bytes are fetched.
  enum class When { kNow, kLater };
  std::vector<Opened> open_all(std::span<const std::string> names, When when = When::kNow);

  // Returns the names in a directory, unsorted, or nullopt for a file. Throws Error like open().
  std::optional<std::vector<std::string>> names_in(const std::string& name);
  // Returns the names of the files and directories in a directory, unsorted. The names of
  // directories end with a slash. Throws Error like open(), and kUsage for a directory of a web
  // server.
  std::vector<std::string> entries_in(const std::string& directory);
  // Forgets what stores have reported about names, for instance the commit of a branch on the Hub,
  // so that later calls ask again. Sources that are open do not change.
  void forget();
  // Returns the text of a small file. Throws Error like open(), and kUnreadable if the file has
  // more than `limit` bytes.
  std::string read_file(const std::string& name, std::uint64_t limit);

  // made() returns how many entries and names this Sources has created in the cache so far.
  // remove_created_since() removes the entries and names that were created after made() returned
  // `made`, except entries that are in use. Call it if loading fails, even if this happens while
  // another checkpoint is loaded.
  std::size_t made() const;
  void remove_created_since(std::size_t made);

  // Reads a few bytes that loading needs beside headers, like Source::read(). Bytes of a remote
  // source are added to resolutions().
  int read(const Source& source, std::uint64_t offset, std::span<std::byte> out);

  // Returns the name with a pinned version (hf://org/name@COMMIT), or a local name unchanged.
  std::string pinned(const std::string& name);

  // The first bytes of a source. Loading the source reads all or some of them.
  struct Beginning {
    const Source* source;
    std::uint64_t length;  // bytes
  };
  // Returns the resolved names, which contain secrets, and the bytes of these beginnings that are
  // not in the cache. Keep the text in memory only. Throws Error kUnreadable if the beginnings are
  // larger than a source without a cache can keep.
  std::string resolutions(std::span<const Beginning> beginnings);
  // Uses the result of resolutions() and no network from now on. Opening a name that the
  // resolutions lack then throws Error, and reading bytes that are not local fails. Throws Error
  // kUnreadable if the text is not a result of resolutions().
  void use(std::string_view resolutions);
  // Permits the sources to fetch after use(). Call it in a worker.
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
  // Destroyed from the last to the first, because each member uses the members before it.
  std::unique_ptr<Http> http_;
  std::unique_ptr<Cache> cache_;
  std::mutex stores_mutex_;
  std::map<std::string, std::unique_ptr<Store>, std::less<>> stores_;  // by scheme
  std::unique_ptr<Fetcher> fetcher_;

  mutable std::mutex known_mutex_;
  std::map<std::string, SourceFacts> known_;      // by name, with its secrets
  std::map<std::string, HubName> offline_roots_;  // pinned names of models, by ID@REVISION
  // A created entry of the cache, with its ID, or a created record about a name.
  struct Made {
    std::string id, name;
  };
  std::vector<Made> made_;
  std::set<std::string> files_read_;
  std::atomic<bool> is_remote_ = false;  // a remote source was opened
  // Bytes of remote sources by path, token and offset. Constant once network_is_closed_ is true.
  std::map<std::string, std::string> parts_;
  std::size_t parts_bytes_ = 0;
  std::mutex callback_mutex_;       // held while `warn` or `progress` of options_ is called
  std::set<std::string> warnings_;  // the warnings that `warn` was called with
};

}  // namespace stfs
