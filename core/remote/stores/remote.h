// Remote objects. A Store is a service that holds objects: a web server, an S3 bucket or a model on
// the Hub. A Remote is one version of one object: it makes the requests for the object's bytes and
// checks whether a response belongs to that version.
//
// Store and Remote hold secrets. In a RemoteVersion only `url` may contain a secret, so `url` is
// never printed, logged or written to a disk.
#pragma once

#include "core/remote/http/http.h"
#include "core/source/source.h"

#include <chrono>
#include <cstdint>
#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace stfs {

// The facts about an object that were found when it was opened. They are enough to open it again
// without a request.
struct RemoteVersion {
  // Source::path(): a URL without secrets, pinned as far as the store can pin it
  // (hf://org/name@COMMIT/file).
  std::string name;
  std::string url;  // the URL for requests if `name` does not contain all of it; may hold secrets
  std::uint64_t size = 0;  // bytes
  timespec mtime{};        // 0 if the store does not report a time
  std::string token;       // Version::token: store and validator, "s3-..", "hf-<sha256>", "web-.."
  // The strong ETag as the server writes it; "" if it sends none, or if responses carry other
  // ETags.
  std::string etag;
  std::string weak_etag;      // without W/; "" if there is a strong ETag or no ETag
  std::string last_modified;  // as the server writes it; "" if it sends none
  std::string version_id;     // in an S3 bucket with versions; "" otherwise
  std::string sha256;         // 64 hex digits of all bytes; "" if the store does not report it
  bool is_weak = false;       // only time and size distinguish versions
};

// Converts a version to one line of JSON, without `url` unless `with_secrets`, and back.
// parse_remote_version() returns nullopt for any other text.
std::string to_json(const RemoteVersion& version, bool with_secrets);
std::optional<RemoteVersion> parse_remote_version(std::string_view text);

// What to do after a response to a request for a range of a version.
struct ResponseVerdict {
  enum class Kind {
    kAccept,
    kRetry,    // a temporary error: send the request again later
    kRenew,    // 401, 403: the credentials or the signed URL may have expired
    kChanged,  // the object has another version or was deleted: ESTALE, permanently
    kRefused,  // the server breaks a rule, which `text` names: EIO
  };
  Kind kind;
  std::string text = {};
};

// Checks the head of a response. Accepts status 206 with exactly the requested Content-Range, and
// 200 if the range is the whole object. In both cases the validators must equal the version's, the
// length must be exact, and there must be no content encoding. Status 404, 410, 412 or 416, another
// size or another validator mean that the object has changed. Any other 200 comes from a server
// that ignores ranges, and is refused. For the rules see SEMANTICS, "Remote sources".
ResponseVerdict judge(const RemoteVersion& version, const HttpHead& head, ByteRange range);

// Parses `bytes FIRST-LAST/SIZE`, or `bytes */SIZE`, which a 416 response has; its range is then
// empty. Returns nullopt for any other text.
struct ContentRange {
  ByteRange range;
  std::uint64_t size = 0;  // bytes of the whole object
};
std::optional<ContentRange> parse_content_range(std::string_view text);
// Returns why the body of a response does not consist of the object's bytes (it is compressed, or
// has several parts), or "" if it does.
std::string encoding_refusal(const HttpHead& head);

// One version of one object. Thread safety: all members may be called from any thread.
class Remote {
 public:
  Remote() = default;
  Remote(const Remote&) = delete;
  Remote& operator=(const Remote&) = delete;
  virtual ~Remote() = default;

  // Returns the request for a range, with secrets, and with If-Match if the version has a strong
  // ETag. May block while it gets credentials or a signed URL, so it must not be called on the
  // thread of Http. Throws Error.
  virtual HttpRequest request(ByteRange range) = 0;
  // Checks the head of a response to such a request, like stfs::judge() with the store's own
  // additions.
  virtual ResponseVerdict judge(const HttpHead& head, ByteRange range) const = 0;
  // Called after a 401 or 403 response (ResponseVerdict::kRenew). Makes the next request() use new
  // credentials or a new URL. Returns false if there is nothing to renew.
  virtual bool renew() = 0;
};

// A version that was found, and the object's first bytes, if the response contained any.
struct Found {
  RemoteVersion version;
  std::string first = {};
};

// A service that holds objects. Thread safety: all members may be called from several threads at
// the same time. They block.
class Store {
 public:
  Store() = default;
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;
  virtual ~Store() = default;

  using Patience = std::optional<std::chrono::milliseconds>;  // as in Http::get()

  // Returns the object's current version. `known` may be a version from the cache: the store may
  // then ask only whether it is still current, and return it without bytes. Throws Error kUsage for
  // an invalid name, kAbsent if the object does not exist, kHidden if the object may be absent or
  // forbidden, and kUnreadable.
  virtual Found find(const std::string& name, const RemoteVersion* known,
                     Patience patience = {}) = 0;
  // Returns the sorted names of the files directly in a directory, or nullopt if `name` is a file
  // or the store cannot list it. Throws Error like find().
  virtual std::optional<std::vector<std::string>> list(const std::string& name) = 0;
  // Returns the sorted names of the files and directories in a directory; a directory's name ends
  // in a slash. Throws Error like find(), and kUsage if the store has no directories.
  virtual std::vector<std::string> entries(const std::string& name) = 0;
  // Discards the store's knowledge about names, so that the server is asked again.
  virtual void forget() {}
  // Returns the Remote for a version that find() returned, in this or another process. Sends no
  // request.
  virtual std::unique_ptr<Remote> remote(const RemoteVersion& version) = 0;
  // Returns the name with a commit in place of a branch, if the store can pin names. Sends at most
  // one request.
  virtual std::string pinned(const std::string& name) { return name; }
};

}  // namespace stfs
