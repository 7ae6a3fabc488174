// Objects of S3 and of what speaks its protocol: s3://bucket/key. A prefix is read as a directory.
// An object of the same name wins, unless it is empty: some tools mark a directory by such an
// object.
//
// All after "bucket/" is the key, byte by byte: it may hold "?", "%", "//" and "..". So a name
// cannot say which version of an object it means: it is the latest.
//
// find() is one signed GET of the first block, as of a web server (web.h). The version is pinned by
// the bucket's version id, or by the ETag. Where only the latest version may be read
// (s3:GetObjectVersion is not granted), the ETag pins that.
#pragma once

#include "core/remote/stores/remote.h"

#include <memory>
#include <string>

namespace stfs {

// The settings of S3 that a command line may give.
struct S3Options {
  std::string addressing = {};  // "path", "virtual" or "auto"; "": as the profile says
  bool is_unsigned = false;     // AWS_NO_SIGN_REQUEST means so too
  bool requester_pays = false;  // AWS_REQUEST_PAYER=requester means so too
};

// `http` outlives the store, and the store its Remotes. Endpoint, region, addressing style and
// credentials come from the environment and the profile (s3_credentials.h), when the first object
// is asked for. With `insecure_http` requests to an http endpoint are signed too.
std::unique_ptr<Store> make_s3_store(Http& http, bool insecure_http, S3Options options = {});

}  // namespace stfs
