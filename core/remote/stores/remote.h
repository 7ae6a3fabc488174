// Objects elsewhere. A Store is a place that has objects: a web server, a bucket of S3, a model on
// the Hub. A Remote is one version of one object: it knows how to ask for its bytes, and whether an
// answer is of that version.
//
// Store and Remote hold secrets. None of them stands in a RemoteVersion but in `url`, which is
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

// The facts about an object, found when it was opened: enough to open it again without asking.
struct RemoteVersion {
  std::string name;  // Source::path(): a URL without secrets that pins what it can pin
                     // (hf://org/name@COMMIT/file)
  std::string url;   // that requests begin with, if `name` does not say it; may hold secrets
  std::uint64_t size = 0;
  timespec mtime{};       // 0 when the store tells none
  std::string token;      // Version::token: kind and validator, "s3-..", "hf-<sha256>", "web-.."
  std::string etag;       // strong, as the server writes it; "" when the answers' ETag says nothing
  std::string weak_etag;  // without W/, of a version that has no strong one; "" for none
  std::string last_modified;  // as the server writes it; "" for none
  std::string version_id;     // of a bucket with versions; "" for none
  std::string sha256;         // 64 hex digits of all bytes; "" when nobody said it
  bool is_weak = false;       // nothing but time and size tells versions apart
};

// JSON of one line, without `url` unless `with_secrets`; and back: nullopt for any other text.
std::string to_json(const RemoteVersion& version, bool with_secrets);
std::optional<RemoteVersion> parse_remote_version(std::string_view text);

// The next step after an answer to a request for a range of a version.
struct Verdict {
  enum class Kind {
    kAccept,
    kRetry,    // temporary: send it again later
    kRenew,    // 401, 403: the credentials or the signed URL may have expired
    kChanged,  // the object is another version, or gone: ESTALE, for ever
    kRefused,  // the server does what it must not: EIO, `text` says what
  };
  Kind kind;
  std::string text = {};
};

// Accepts 206 with the exact Content-Range, and 200 if the range is the whole object; both with the
// same validators, no content encoding and the exact length. 404, 410, 412 and 416 mean changed,
// and so does another size or validator. Any other 200 comes from a server that ignores ranges. For
// the rules see SEMANTICS, "Remote sources".
Verdict judge(const RemoteVersion& version, const HttpHead& head, ByteRange range);

// `Content-Range: bytes FIRST-LAST/SIZE`, or `bytes */SIZE` of an answer 416, whose range is empty;
// nullopt for any other text.
struct ContentRange {
  ByteRange range;
  std::uint64_t size = 0;  // of the whole object
};
std::optional<ContentRange> parse_content_range(std::string_view text);
// Why the bytes of an answer are not those of the object: they are compressed, or come in parts; ""
// when they are.
std::string encoding_refusal(const HttpHead& head);

// Thread safety: all members.
class Remote {
 public:
  Remote() = default;
  Remote(const Remote&) = delete;
  Remote& operator=(const Remote&) = delete;
  virtual ~Remote() = default;

  // The request for a range, with secrets, and If-Match where the version has a strong ETag. May
  // block while it gets credentials or a signed URL; so not on the thread of Http. Throws Error.
  virtual HttpRequest request(ByteRange range) = 0;
  virtual Verdict judge(const HttpHead& head, ByteRange range) const = 0;
  // An answer was 401 or 403 (Verdict::kRenew): the next request() shall use new credentials or a
  // new URL. False when there is nothing to renew.
  virtual bool renew() = 0;
};

// A version that was found, and the bytes that came with the answer: the first ones of the object,
// maybe none.
struct Found {
  RemoteVersion version;
  std::string first = {};
};

// Thread safety: all members may be called from any thread, also several at a time. They block.
class Store {
 public:
  Store() = default;
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;
  virtual ~Store() = default;

  using Patience = std::optional<std::chrono::milliseconds>;  // of Http::get()

  // The version of an object that is there now. `known` may be one that a cache has: a store can
  // then ask whether it is still the one, and answer without bytes. Throws Error: kAbsent, or
  // kUnreadable.
  virtual Found find(const std::string& name, const RemoteVersion* known,
                     Patience patience = {}) = 0;
  // Whether a name may be read as a directory. If it may, its entries' names (files directly in
  // it), sorted; nullopt when it is a file. Throws Error as find() does.
  virtual std::optional<std::vector<std::string>> list(const std::string& name) = 0;
  // The names of the files and directories in a directory, those of directories with a slash at the
  // end, sorted. Throws Error as find() does, and kUsage where there are no directories.
  virtual std::vector<std::string> entries(const std::string& name) = 0;
  // What the store keeps of names is asked for again.
  virtual void forget() {}
  // A version that find() gave, here or in another process. Asks nobody.
  virtual std::unique_ptr<Remote> remote(const RemoteVersion& version) = 0;
  // The name with what can be pinned: the commit in place of a branch. Asks at most once.
  virtual std::string pinned(const std::string& name) { return name; }
};

}  // namespace stfs
