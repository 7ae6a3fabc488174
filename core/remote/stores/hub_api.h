// Parses the responses of the Hub's API: models, trees and errors. Responses are not trusted: file
// names that leave the model are skipped, and sizes and digests that are not valid count as
// unknown.
//
// Thread safety: the functions may be called from any thread.
#pragma once

#include "core/remote/stores/hub_name.h"

#include <cstdint>
#include <ctime>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace stfs {

struct HubFile {
  std::optional<std::uint64_t> size = {};  // bytes
  std::string sha256 = {};                 // of the bytes, for a file in Git LFS or Xet; else ""
  std::string blob = {};                   // git's SHA-1, for any other file; else ""

  bool is_known() const { return size && (!sha256.empty() || !blob.empty()); }
};

// A model at one commit.
struct HubModel {
  std::string id;      // the current name as the Hub writes it
  std::string commit;  // 40 hex digits
  timespec mtime{};    // the time that the Hub reports for the model (lastModified)
  std::map<std::string, HubFile> files = {};
};

// Parses a response of /api/models/ID/revision/REV?blobs=true. Throws Error kUnreadable.
HubModel parse_hub_model(const std::string& json, const HubName& asked);
// Adds one page of /api/models/ID/tree/COMMIT?recursive=true to `model`: new files, and the facts
// that were missing for known ones. Throws Error kUnreadable.
void add_hub_tree(const std::string& json, const std::string& place, HubModel& model);
// Returns the target of `Link: <URL>; rel="next"`, or "" if the header has no such link.
std::string next_hub_page(std::string_view link);

// Throws the Error for a response with a status other than 2xx. `place` is the place in the
// message, and `body` is the body of the response if it was read.
[[noreturn]] void refuse_hub_answer(const HttpHead& head, const std::string& place,
                                    const std::string& id, const HubOptions& options,
                                    const std::string& body = "");
// Throws Error kUnreadable: the Hub's response is not valid.
[[noreturn]] void throw_not_the_hub(const std::string& place, const std::string& what);

}  // namespace stfs
