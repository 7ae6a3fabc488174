// A server's own reason for refusing a request, as messages quote it.
//
// Thread safety: the functions may be called from any thread.
#pragma once

#include "core/remote/http/http.h"

#include <string>
#include <string_view>
#include <vector>

namespace stfs {

// The texts of a request that no message may show, since a server may send them back: the values of
// its headers `secrets`, and of the parameters in its query and its body.
std::vector<std::string> secrets_of(const HttpRequest& request);

// Returns `said` in quotes, escaped and cut to 200 characters, with "***" in place of each secret.
std::string quoted(std::string_view said, std::vector<std::string> secrets);

// The reason in the body of an answer: `<Error>` of XML (S3, STS, Azure), "error", "errors" or
// "message" of JSON, or the text. Each part is "" where there is none, as on a page of HTML.
struct ServerReason {
  std::string code;  // letters and digits
  std::string message;
};
ServerReason reason_in(const std::string& body);

// ` AccessDenied: "Access Denied"`, what follows after "the server answered 403"; "" for an answer
// without a reason. A header X-Error-Message comes before the body.
std::string reason_text(const HttpAnswer& answer, const std::vector<std::string>& secrets);

}  // namespace stfs
