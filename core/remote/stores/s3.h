// Objects of S3 and of compatible servers: s3://bucket/key. A prefix is read as a directory. If an
// object has the same name as a prefix, the name means the object, unless the object is empty: some
// tools mark a directory by an empty object.
//
// The key is everything after "bucket/", byte by byte; it may contain "?", "%", "//" and "..". A
// name therefore cannot choose a version of an object, and always means the latest.
//
// find() is one signed GET of the first block, as for a web server (web.h). The bucket's version id
// pins the version, or the ETag if the bucket has no versions. If s3:GetObjectVersion is not
// granted, only the latest version may be read, and the ETag pins it.
// (s3:GetObjectVersion is not granted), the ETag pins that.
#pragma once

#include "core/remote/stores/remote.h"

#include <memory>
#include <string>

namespace stfs {

// The settings of S3 that a command line may contain.
struct S3Options {
  std::string addressing = {};  // "path", "virtual" or "auto"; "": the profile decides
  bool is_unsigned = false;     // send requests unsigned, like AWS_NO_SIGN_REQUEST
  bool requester_pays = false;  // like AWS_REQUEST_PAYER=requester
};

// `http` must outlive the store, and the store must outlive its Remotes. Endpoint, region,
// addressing style and credentials are read from the environment and the profile (s3_credentials.h)
// when the first object is requested. `insecure_http` permits an http endpoint; requests to it are
// signed as well.
std::unique_ptr<Store> make_s3_store(Http& http, bool insecure_http, S3Options options = {});

}  // namespace stfs
