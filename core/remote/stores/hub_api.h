// The answers of the Hub's API: models, trees, refusals. Nothing in them is trusted: names stay
// inside the model, sizes and digests are valid or count as not told.
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
  std::optional<std::uint64_t> size = {};
  std::string sha256 = {};  // of Git LFS and Xet
  std::string blob = {};    // git's SHA-1, of other files

  bool is_known() const { return size && (!sha256.empty() || !blob.empty()); }
};

// A model at one commit.
struct HubModel {
  std::string id;      // as the Hub writes it now
  std::string commit;  // 40 hex digits
  timespec mtime{};    // of the commit
  std::map<std::string, HubFile> files = {};
};

// The answer of /api/models/ID/revision/REV?blobs=true. Throws Error kUnreadable.
HubModel parse_hub_model(const std::string& json, const HubName& asked);
// Adds a page of /api/models/ID/tree/COMMIT?recursive=true: the files, and what was not known of
// them. Throws Error kUnreadable.
void add_hub_tree(const std::string& json, const std::string& place, HubModel& model);
// The target of `Link: <URL>; rel="next"`; "" when there is none.
std::string next_hub_page(std::string_view link);

// Throws the Error that an answer other than 2xx means. `place` names the request. `body` is that
// of the answer, if it was read.
[[noreturn]] void refuse_hub_answer(const HttpHead& head, const std::string& place,
                                    const std::string& id, const HubOptions& options,
                                    const std::string& body = "");
// Throws Error kUnreadable: the Hub's answer breaks its rule.
[[noreturn]] void throw_not_the_hub(const std::string& place, const std::string& what);

}  // namespace stfs
