#include "core/remote/http/libcurl.h"

#include "core/base/error.h"

#include <dlfcn.h>

#include <string>

namespace stfs {
namespace {

#ifdef STFS_CARRIED  // a portable build has libcurl linked in
Libcurl load() {
  Libcurl curl{};
#define STFS_TAKE(name) curl.name = &::curl_##name;
  STFS_LIBCURL(STFS_TAKE)
#undef STFS_TAKE
  return curl;
}
#else
template <class Function>
void find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function == nullptr)
    throw Error(ErrorCode::kUnreadable, "libcurl.so.4", std::string("it has no ") + name);
}

Libcurl load() {
  void* const library = dlopen("libcurl.so.4", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const why = dlerror();
    throw Error(ErrorCode::kUnreadable, "libcurl",
                std::string(why) + ": install it (libcurl4) to read URLs");
  }
  Libcurl curl{};
#define STFS_FIND(name) find(library, "curl_" #name, curl.name);
  STFS_LIBCURL(STFS_FIND)
#undef STFS_FIND
  return curl;
}
#endif

}  // namespace

const Libcurl& libcurl() {
  static const Libcurl curl = load();
  return curl;
}

}  // namespace stfs
