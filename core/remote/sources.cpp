#include "core/remote/sources.h"

#include "core/base/posix.h"
#include "core/base/sha256.h"
#include "core/base/text.h"
#include "core/remote/cache/cache.h"
#include "core/remote/cache/cache_file.h"
#include "core/remote/cache/fetcher.h"
#include "core/remote/http/http.h"
#include "core/remote/http/url.h"
#include "core/remote/stores/hub.h"
#include "core/remote/stores/hub_cache.h"
#include "core/remote/stores/hub_name.h"
#include "core/remote/stores/remote.h"
#include "core/remote/stores/web.h"
#include "core/source/local_file.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <map>
#include <mutex>
#include <set>
#include <span>
#include <thread>
#include <utility>

namespace stfs {
namespace {

using Json = nlohmann::json;
using std::chrono::milliseconds;

constexpr milliseconds kLaterPatience{5'000};

// Returns true if a name in a server's listing can be the name of a file in a directory.
bool is_plain_file_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\0", 2)) == std::string::npos;
}

// Returns the key of a name in the cache. URLs with different queries have different keys, because
// they may mean different objects.
std::string key_of(const std::string& given) {
  const std::string name = without_signature(given);
  const std::string key = public_name(name);
  return key == name ? key : key + "#" + sha256_hex(name);
}

bool is_web(std::string_view scheme) { return scheme == "https" || scheme == "http"; }

using Known = SourceFacts;

Json json_of(const Known& known, bool with_secrets) {
  Json json = Json::object();
  if (known.pinned) json["pinned"] = with_secrets ? *known.pinned : public_name(*known.pinned);
  if (known.is_file) json["is_file"] = true;
  if (known.is_absent && with_secrets) json["is_absent"] = true;
  if (known.listing) json["listing"] = *known.listing;
  if (known.version) json["version"] = to_json(*known.version, with_secrets);
  if (with_secrets && !known.first.empty()) {
    json["first"] = Json::binary({known.first.begin(), known.first.end()});
  }
  return json;
}

// Reads the facts that the cache has about a name. Skips values of another type, because the
// content of the cache is not trusted.
Known known_of(const Json& json) {
  const auto text_of = [](const Json& value) -> std::optional<std::string> {
    const auto* text = value.get_ptr<const Json::string_t*>();
    return text != nullptr ? std::optional(*text) : std::nullopt;
  };
  Known known;
  if (!json.is_object()) return known;
  for (const auto& [key, value] : json.items()) {
    if (key == "pinned") known.pinned = text_of(value);
    if (key == "is_file") known.is_file = value == true;
    if (key == "is_absent") known.is_absent = value == true;
    if (key == "version") known.version = parse_remote_version(text_of(value).value_or(""));
    if (key == "first" && value.is_binary()) {
      known.first.assign(value.get_binary().begin(), value.get_binary().end());
    }
    if (key != "listing" || !value.is_array()) continue;
    known.listing.emplace();
    for (const Json& name : value) {
      auto text = text_of(name);
      if (text && is_plain_file_name(*text)) known.listing->push_back(*std::move(text));
    }
  }
  return known;
}

}  // namespace

SourceOptions resolved(SourceOptions options) {
  options.offline = options.offline || *hub_offline_variable() != '\0';
  if (options.cache_dir.empty()) options.cache_dir = Cache::default_directory();
  if (options.cache_dir.empty()) return options;
  std::error_code error;
  options.cache_dir =
      std::filesystem::absolute(options.cache_dir, error).lexically_normal().string();
  return options;
}

Sources::Sources(SourceOptions options)
    : options_(resolved(std::move(options))), is_offline_for_hub_(*hub_offline_variable() != '\0') {
  if (options_.counters == nullptr) options_.counters = &own_counters_;
}

Sources::~Sources() = default;

void Sources::start_fetching() {
  if (fetcher_) fetcher_->hold(false);
}

std::vector<std::string> Sources::files_read() const {
  const std::lock_guard lock(known_mutex_);
  return {files_read_.begin(), files_read_.end()};
}

void Sources::note_read(const std::string& path) {
  {
    std::error_code error;
    const std::lock_guard lock(known_mutex_);
    files_read_.insert(std::filesystem::absolute(path, error).string());
  }
  if (options_.reads) options_.reads(path);
}

std::string Sources::cache_directory() const { return is_remote_ ? options_.cache_dir : ""; }

std::size_t Sources::made() const {
  const std::lock_guard lock(known_mutex_);
  return made_.size();
}

bool Sources::is_version_of(const Known& known, const Source& source) {
  return known.version && known.version->name == source.path() &&
         known.version->token == source.token();
}

Http& Sources::http() {
  std::call_once(http_once_, [this] {
    http_ = std::make_unique<Http>(Http::Options{.connections = options_.connections,
                                                 .insecure_http = options_.insecure_http,
                                                 .counters = options_.counters,
                                                 .patience = timeout()});
  });
  return *http_;
}

Cache& Sources::cache() {
  std::call_once(cache_once_, [this] {
    cache_ = std::make_unique<Cache>(
        Cache::Options{.directory = options_.cache_dir, .size = options_.cache_size});
    if (!cache_->unusable().empty()) {
      warn(cache_->unusable() + ": fetched bytes are kept only in memory, 16 MiB of each source");
    }
  });
  return *cache_;
}

Fetcher& Sources::fetcher() {
  std::call_once(fetcher_once_, [this] {
    fetcher_ = std::make_unique<Fetcher>(Fetcher::Options{.timeout = timeout(),
                                                          .connections = options_.connections,
                                                          .offline = options_.offline,
                                                          .counters = options_.counters},
                                         http(), cache());
    fetcher_->hold(network_is_closed_);
  });
  return *fetcher_;
}

Store& Sources::store(const std::string& name) {
  const std::string_view scheme = is_web(scheme_of(name)) ? "https" : scheme_of(name);
  const std::lock_guard lock(stores_mutex_);
  const auto at = stores_.find(scheme);
  if (at != stores_.end()) return *at->second;
  std::unique_ptr<Store> made;
  if (scheme == "https") {
    made = make_web_store(http());
  } else if (scheme == "s3") {
    made = make_s3_store(http(), options_.insecure_http, options_.s3);
  } else if (scheme == "hf") {
    made = make_hub_store(http());
  } else {
    throw Error(ErrorCode::kUsage, public_name(name),
                "unknown URL scheme: stfs supports https, s3 and hf");
  }
  return *stores_.emplace(scheme, std::move(made)).first->second;
}

void Sources::warn(const std::string& line) {
  const std::lock_guard lock(callback_mutex_);
  if (warnings_.insert(line).second && options_.warn != nullptr) options_.warn(line);
}

void Sources::warn_of_unused_copy(const Error& error) {
  warn(printable(error.place()) +
       ": the copy in the Hub's own cache is not used: " + error.message());
}

// Returns the facts about a name in the resolutions that use() was called with, or nullopt if use()
// was not called.
std::optional<SourceFacts> Sources::given(const std::string& name) {
  if (!network_is_closed_) return std::nullopt;
  const std::lock_guard lock(known_mutex_);
  const auto at = known_.find(name);
  return at != known_.end() ? std::optional(at->second) : std::nullopt;
}

// Returns the facts about a name that are in the cache.
SourceFacts Sources::recalled(const std::string& name) {
  const auto json = cache().recall(key_of(name));
  return json ? known_of(Json::parse(*json, nullptr, false)) : Known{};
}

// Adds facts about a name, with `change`, to known_ and to the cache.
template <class Change>
void Sources::learn(const std::string& name, const Change& change) {
  {
    const std::lock_guard lock(known_mutex_);
    change(known_[name]);
  }
  const auto remembered = cache().recall(key_of(name));
  Known known = remembered ? known_of(Json::parse(*remembered, nullptr, false)) : Known{};
  const Json before = json_of(known, false);
  change(known);
  const Json after = json_of(known, false);
  if (after == before) return;
  const std::string text = after.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (!cache().remember(key_of(name), text) || remembered) return;
  const std::lock_guard lock(known_mutex_);
  made_.push_back({"", key_of(name)});
}

void Sources::refuse_to_ask(const std::string& name) const {
  throw Error(ErrorCode::kHidden, public_name(name),
              !options_.offline      ? "changed while it was loaded: mount it again"
              : !is_offline_for_hub_ ? "offline, and this was never fetched"
                                     : "offline (" + std::string(hub_offline_variable()) +
                                           " is set), and this was never fetched");
}

// Returns true if the cache has the first `length` bytes of a version.
bool Sources::is_cached(const RemoteVersion& version, std::uint64_t length) {
  const std::unique_ptr<CacheEntry> entry = cache().open(version, true);
  if (entry == nullptr) return false;
  const std::uint64_t blocks = (length + CacheEntry::kBlock - 1) / CacheEntry::kBlock;
  for (std::uint64_t i = 0; i < std::min(blocks, entry->blocks()); ++i) {
    if (!entry->is_there(i)) return false;
  }
  return true;
}

// Returns the end of the local blocks in the first `length` bytes of a source, or 0 if the cache
// has all of them. Loading the source again reads only these blocks, because a reader skips the
// other bytes.
std::uint64_t Sources::end_not_cached(const RemoteVersion& version, const Source& source,
                                      std::uint64_t length) {
  const std::unique_ptr<CacheEntry> entry = cache().open(version, true);
  std::uint64_t end = 0;
  bool has_all = true;
  for (std::uint64_t begin = 0; begin < std::min(length, source.size());
       begin += CacheEntry::kBlock) {
    const ByteRange block{begin, std::min(CacheEntry::kBlock, source.size() - begin)};
    if (!source.has(block)) continue;
    end = block.offset + block.length;
    has_all = has_all && entry != nullptr && entry->is_there(begin / CacheEntry::kBlock);
  }
  return has_all ? 0 : end;
}

// Opens the file of the Hub's own cache for an object. Returns null if there is no such file, and
// also, after a warning, if the file must not be used. `version` is null if stfs is offline and
// does not know the version.
std::unique_ptr<const Source> Sources::make_from_copy(const std::string& name,
                                                      const RemoteVersion* version) {
  const std::string path = scheme_of(name) == "hf" ? hub_local_copy(name) : "";
  if (path.empty()) return nullptr;
  note_read(path);
  try {
    HubCacheFile copy = open_in_hub_cache(path);
    auto object = hub_copy_object(name, copy.path);
    if (version != nullptr) {
      // Only tokens of the same kind of digest, which have the same length, can be compared.
      if (object && object->token.size() == version->token.size() &&
          object->token != version->token) {
        throw Error(ErrorCode::kUnreadable, path,
                    "its name is another digest than the one on the Hub");
      }
      object = LocalFile::Object{.name = version->name,
                                 .token = version->token,
                                 .mtime = version->mtime,
                                 .sha256 = version->sha256};
    }
    auto file = std::make_unique<const LocalFile>(copy.path, std::move(copy.fd), std::move(object));
    if (version == nullptr || file->size() == version->size) return file;
    throw Error(ErrorCode::kUnreadable, path,
                "has " + std::to_string(file->size()) + " bytes, not " +
                    std::to_string(version->size) + " as the Hub says");
  } catch (const Error& error) {
    warn_of_unused_copy(error);
  }
  return nullptr;
}

std::unique_ptr<const Source> Sources::make(const std::string& name, const RemoteVersion& version,
                                            std::string_view first, When when) {
  if (auto copy = make_from_copy(version.name, &version)) return copy;
  std::unique_ptr<CacheEntry> entry = cache().open(version, options_.offline);
  if (entry == nullptr && options_.offline) refuse_to_ask(name);
  if (entry != nullptr && entry->is_new()) {
    const std::lock_guard lock(known_mutex_);
    made_.push_back({entry->id(), ""});
  }
  std::unique_ptr<Remote> remote = store(name).remote(version);
  // A store may send requests before its first block. Send them now on the calling threads, of
  // which there may be many, and not on the one thread of the fetcher that prepares requests.
  const bool has_first = !first.empty() || (entry != nullptr && entry->is_there(0));
  if (when == When::kNow && may_ask() && version.size > 0 && !has_first)
    static_cast<void>(remote->request({0, 1}));
  const bool has_room = first.empty() || entry == nullptr || cache().make_room(first.size());
  return std::make_unique<const CacheFile>(version, std::move(remote), std::move(entry), fetcher(),
                                           first, has_room);
}

std::unique_ptr<const Source> Sources::open_remote(const std::string& name, When when) {
  is_remote_ = true;
  Store& store = this->store(name);
  const std::string at = pinned(name);
  if (const auto known = given(at); known && (known->version || known->is_absent)) {
    if (!known->version) throw Error(ErrorCode::kAbsent, public_name(name), "no such file");
    return make(at, *known->version, known->first, when);
  }
  Known known = recalled(at);
  if (!may_ask()) {
    if (!known.version && options_.offline) {
      if (auto copy = make_from_copy(at, nullptr)) return copy;
    }
    if (!known.version || network_is_closed_) refuse_to_ask(name);
    {
      const std::lock_guard lock(known_mutex_);
      known_[at].version = known.version;  // for resolutions()
    }
    return make(at, *std::move(known.version), "", when);
  }
  Found found;
  try {
    // A file that is perhaps never read must not delay the files that are read.
    const auto patience = when == When::kLater
                              ? std::optional(std::min(kLaterPatience, milliseconds(timeout()) / 4))
                              : std::nullopt;
    found = store.find(at, known.version ? &*known.version : nullptr, patience);
  } catch (const Error& error) {
    const std::lock_guard lock(known_mutex_);
    if (error.code() == ErrorCode::kAbsent) known_[at].is_absent = true;
    throw;
  }
  learn(at, [&](Known& what) { what.version = found.version; });
  if (found.version.is_weak) {
    warn(public_name(parent_name(at)) +
         ": its server sends no strong ETag: stfs cannot detect a change that keeps " +
         (found.version.weak_etag.empty() ? "" : "the weak ETag, ") + "the time and the size");
  }
  return make(at, found.version, found.first, when);
}

void Sources::remove_created_since(std::size_t made) {
  std::vector<Made> removed;
  {
    const std::lock_guard lock(known_mutex_);
    for (; made_.size() > made; made_.pop_back()) removed.push_back(std::move(made_.back()));
  }
  bool is_used = false;  // another process uses an entry, and may rely on the names too
  for (const Made& entry : removed) {
    if (entry.name.empty() && !cache().remove(entry.id)) is_used = true;
  }
  for (const Made& one : removed) {
    if (!one.name.empty() && !is_used) cache().forget(one.name);
  }
}

// Returns the names of a model's files in the Hub's own cache, without a request to the Hub.
// Returns nullopt if the cache has no files of the model.
std::optional<std::vector<std::string>> Sources::local_listing(const std::string& name) const {
  if (scheme_of(name) != "hf") return std::nullopt;
  for (const char* file : {"model.safetensors.index.json", "model.safetensors"}) {
    const std::string copy = hub_local_copy(child_name(name, file));
    if (!copy.empty()) return stfs::names_in(std::filesystem::path(copy).parent_path());
  }
  return std::nullopt;
}

std::optional<std::vector<std::string>> Sources::names_in(const std::string& name) {
  if (!is_url(name)) {
    std::error_code error;
    if (!std::filesystem::is_directory(name, error)) return std::nullopt;
    return stfs::names_in(name);
  }
  Store& store = this->store(name);
  if (is_web(scheme_of(name)) && public_name(name).ends_with('/')) {
    const std::optional<WebUrl> url = parse_web_url(name);
    const std::string on_hub = url ? hub_name_of(*url) : "";
    throw Error(ErrorCode::kUsage, public_name(name),
                on_hub.empty() ? "a web server has no directories: name the file or the index"
                               : "a page of the Hub: name it " + on_hub);
  }
  const std::string at = pinned(name);
  if (!may_ask()) {
    const Known known = network_is_closed_ ? given(at).value_or(Known{}) : recalled(at);
    if (known.is_file || known.version || known.listing) {
      const std::lock_guard lock(known_mutex_);
      known_[at].is_file = !known.listing;  // for resolutions()
      known_[at].listing = known.listing;
      return known.listing;
    }
    if (auto listing = local_listing(at)) return listing;
    if (scheme_of(at) == "hf" && !hub_local_copy(at).empty()) return std::nullopt;
    refuse_to_ask(name);
  }
  std::optional<std::vector<std::string>> listing = store.list(at);
  if (listing)
    std::erase_if(*listing, [](const auto& entry) { return !is_plain_file_name(entry); });
  learn(at, [&](Known& what) {
    what.is_file = !listing;
    what.listing = listing;
  });
  return listing;
}

std::vector<std::string> Sources::entries_in(const std::string& directory) {
  std::vector<std::string> entries;
  if (!is_url(directory)) {
    entries = stfs::names_in(directory);
    for (std::string& name : entries) {
      std::error_code error;
      if (std::filesystem::is_directory(directory + "/" + name, error)) name += '/';
    }
    return entries;
  }
  Store& store = this->store(directory);
  if (!may_ask()) refuse_to_ask(directory);
  entries = store.entries(directory);
  std::erase_if(entries, [](const std::string& entry) {
    return !is_plain_file_name(entry.ends_with('/') ? entry.substr(0, entry.size() - 1) : entry);
  });
  return entries;
}

void Sources::forget() {
  {
    const std::lock_guard lock(known_mutex_);
    known_.clear();
    files_read_.clear();
    offline_roots_.clear();
  }
  const std::lock_guard lock(stores_mutex_);
  for (const auto& [scheme, store] : stores_) store->forget();
}

std::string Sources::pinned(const std::string& name) {
  if (!is_url(name)) return name;
  {
    const std::lock_guard lock(known_mutex_);
    const auto at = known_.find(name);
    if (at != known_.end() && at->second.pinned) return *at->second.pinned;
  }
  Store& store = this->store(name);
  if (!may_ask()) {
    const auto before = network_is_closed_ ? std::nullopt : pinned_offline(name);
    if (!before) return name;
    const std::lock_guard lock(known_mutex_);
    known_[name].pinned = before;  // for resolutions()
    return *before;
  }
  std::string pinned = store.pinned(name);
  if (pinned != name) learn(name, [&](Known& what) { what.pinned = pinned; });
  return pinned;
}

// Returns the name with the commit of the revision in the cache of stfs or in the Hub's own cache.
// The commit of a revision stays the same in this Sources, even if another process changes it in
// the cache while the files of the checkpoint are opened.
std::optional<std::string> Sources::pinned_offline(const std::string& name) {
  std::optional<std::string> pinned = recalled(name).pinned;
  if (scheme_of(name) != "hf") return pinned;
  const HubName asked = parse_hub_name(name);
  if (asked.has_commit()) return pinned;
  HubName root;
  try {
    root = pinned ? parse_hub_name(*pinned)
                  : HubName{.id = asked.id, .revision = hub_cached_commit(asked)};
  } catch (const Error& error) {
    warn_of_unused_copy(error);
  }
  const std::lock_guard lock(known_mutex_);
  root = offline_roots_.try_emplace(asked.id + "@" + asked.revision, root).first->second;
  if (!root.has_commit()) return std::nullopt;
  root.path = asked.path;
  return root.text();
}

int Sources::read(const Source& source, std::uint64_t offset, std::span<std::byte> out) {
  if (!is_url(source.path()) || source.local_file() != nullptr) return source.read(out, offset);
  std::string key = source.path();
  key.append(1, '\0').append(source.token()).append(1, '\0');
  key += std::to_string(offset);
  if (network_is_closed_) {
    const auto known = parts_.find(key);
    if (known != parts_.end() && known->second.size() == out.size()) {
      std::memcpy(out.data(), known->second.data(), out.size());
      return 0;
    }
  }
  const int error = source.read(out, offset);
  if (error != 0 || network_is_closed_) return error;
  constexpr std::size_t kMaxParts = std::size_t{16} << 20;
  const std::lock_guard lock(known_mutex_);
  if (parts_bytes_ + out.size() > kMaxParts) return 0;
  parts_bytes_ += out.size();
  parts_[std::move(key)] = {reinterpret_cast<const char*>(out.data()), out.size()};
  return 0;
}

void Sources::keep_if_not_cached(const Source& source, std::string_view first) {
  if (source.local_file() != nullptr) return;
  const std::lock_guard lock(known_mutex_);
  for (auto& [name, known] : known_) {
    if (is_version_of(known, source) && !is_cached(*known.version, first.size()))
      known.first = first;
  }
}

std::string Sources::resolutions(std::span<const Beginning> beginnings) {
  for (const auto& [source, length] : beginnings) {
    std::uint64_t end = 0;
    {
      const std::lock_guard lock(known_mutex_);
      const auto known = std::ranges::find_if(
          known_, [&, at = source](const auto& entry) { return is_version_of(entry.second, *at); });
      if (known == known_.end() || source->local_file() != nullptr) continue;
      end = end_not_cached(*known->second.version, *source, length);
    }
    if (end == 0) continue;
    if (end > Fetcher::kMemory) {
      throw Error(ErrorCode::kUnreadable, source->path(),
                  "its header has " + human_bytes(length) +
                      ", but no cache can hold it: name a directory with -o cache_dir, or mount "
                      "without -o supervise");
    }
    std::string first(end, '\0');
    if (const int error = source->read(std::as_writable_bytes(std::span(first)), 0)) {
      throw_read_failure(*source, source->path(), "", error);
    }
    keep_if_not_cached(*source, first);
  }
  Json json = Json::object();
  Json& names = json["names"] = Json::array();
  const std::scoped_lock lock(known_mutex_, callback_mutex_);
  for (const auto& [name, known] : known_) {
    names.push_back(Json::array({Json::binary({name.begin(), name.end()}), json_of(known, true)}));
  }
  Json& parts = json["parts"] = Json::array();
  for (const auto& [key, bytes] : parts_) {
    parts.push_back(Json::array(
        {Json::binary({key.begin(), key.end()}), Json::binary({bytes.begin(), bytes.end()})}));
  }
  json["warnings"] = warnings_;
  const std::vector<std::uint8_t> bytes = Json::to_msgpack(json);
  return {bytes.begin(), bytes.end()};
}

void Sources::use(std::string_view resolutions) {
  const Json json = Json::from_msgpack(resolutions, true, false);
  if (!json.is_object() || !json.contains("names") || !json.contains("parts") ||
      !json.contains("warnings")) {
    throw Error(ErrorCode::kUnreadable, "", "the list of the sources that were found is not valid");
  }
  const std::scoped_lock lock(known_mutex_, callback_mutex_);
  for (const Json& entry : json["names"]) {
    const auto& name = entry.at(0).get_binary();
    known_[std::string(name.begin(), name.end())] = known_of(entry.at(1));
  }
  for (const Json& entry : json["parts"]) {
    const auto& key = entry.at(0).get_binary();
    const auto& bytes = entry.at(1).get_binary();
    parts_[{key.begin(), key.end()}].assign(bytes.begin(), bytes.end());
  }
  for (const Json& line : json["warnings"]) warnings_.insert(line.get<std::string>());
  network_is_closed_ = true;
}

std::unique_ptr<const Source> Sources::open(const std::string& name) {
  if (is_url(name)) return open_remote(name, When::kNow);
  note_read(name);
  return std::make_unique<const LocalFile>(name);
}

std::vector<Sources::Opened> Sources::open_all(std::span<const std::string> names, When when) {
  constexpr std::size_t kAtOnce = 16;
  std::vector<Opened> opened(names.size());
  std::vector<std::size_t> remote;
  std::mutex mutex;
  std::optional<Error> unreachable;  // if set, the sources that are not yet begun fail with it
  const auto open_one = [&](std::size_t i) {
    try {
      if (when == When::kLater && is_url(names[i])) {
        opened[i].source = open_remote(names[i], when);
        return;
      }
      opened[i].source = open(names[i]);
      const Source& source = *opened[i].source;
      const ByteRange first{0, std::min(source.size(), CacheEntry::kBlock)};
      if (const int error = is_url(names[i]) ? source.fetch(first) : 0) {
        throw_read_failure(source, source.path(), "", error);
      }
    } catch (const Error& error) {
      opened[i].error = error;
    }
    const std::optional<Error>& error = opened[i].error;
    if (!error || error->code() == ErrorCode::kAbsent || !is_url(names[i])) return;
    if (error->code() == ErrorCode::kHidden && when == When::kLater) return;
    const std::lock_guard lock(mutex);
    if (!unreachable) unreachable = error;
  };
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (is_url(names[i])) {
      remote.push_back(i);
    } else {
      open_one(i);
    }
  }

  std::atomic<std::size_t> next = 0;
  std::atomic<std::size_t> done = 0;
  on_threads(std::min(kAtOnce, remote.size()), [&](std::size_t) {
    for (std::size_t i = 0; (i = next++) < remote.size();) {
      {
        const std::lock_guard lock(mutex);
        if (unreachable) opened[remote[i]].error = unreachable;
      }
      if (!opened[remote[i]].error) open_one(remote[i]);
      const std::size_t now = ++done;
      if (when == When::kLater || options_.progress == nullptr) continue;
      const std::lock_guard lock(callback_mutex_);
      options_.progress(now, remote.size());
    }
  });
  return opened;
}

std::string Sources::read_file(const std::string& name, std::uint64_t limit) {
  if (!is_url(name)) {
    note_read(name);
    return stfs::read_file(name, limit);
  }
  const std::unique_ptr<const Source> source = open(name);
  if (source->size() > limit) {
    throw Error(ErrorCode::kUnreadable, public_name(name),
                "larger than the limit of " + std::to_string(limit) + " bytes");
  }
  std::string text(source->size(), '\0');
  if (const int error = source->read(std::as_writable_bytes(std::span(text)), 0)) {
    throw_read_failure(*source, public_name(name), "", error);
  }
  keep_if_not_cached(*source, text);
  return text;
}

}  // namespace stfs
