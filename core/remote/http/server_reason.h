// The reason that a server gives for refusing a request, as messages quote it.
//
// Thread safety: the functions may be called from any thread.
#pragma once

#include "core/remote/http/http.h"

#include <string>
#include <string_view>
#include <vector>

namespace stfs {

// Returns the texts of a request that messages must not show, even if a server sends them back: the
// values of its headers `secrets`, and the parameter values in its query and its body.
std::vector<std::string> secrets_of(const HttpRequest& request);

// Returns `said` in quotes, escaped and cut to 200 characters, with "***" in place of each secret.
std::string quoted(std::string_view said, std::vector<std::string> secrets);

// Returns the reason in the body of a response: `<Error>` of XML (S3, STS, Azure), "error",
// "errors" or "message" of JSON, or the plain text. A part that the body does not contain is "":
// both are "" for a page of HTML.
struct ServerReason {
  std::string code;  // only letters and digits
  std::string message;
};
ServerReason reason_in(const std::string& body);

// Returns the text that a message adds after "the server answered 403", or "" if the response has
// no reason. Example: ` AccessDenied: "Access Denied"`. A header X-Error-Message takes precedence
// over the body.
std::string reason_text(const HttpResponse& answer, const std::vector<std::string>& secrets);

}  // namespace stfs
