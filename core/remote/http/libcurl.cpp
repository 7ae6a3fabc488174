#include "core/remote/http/libcurl.h"

#include "core/base/error.h"

#include <dlfcn.h>

#include <string>

namespace stfs {
namespace {

#ifdef STFS_CARRIED  // libcurl is linked into what is carried
Libcurl load() {
  // cppcheck-suppress returnDanglingLifetime  ; cppcheck takes functions for local variables
  return {&::curl_easy_cleanup,        &::curl_easy_getinfo,  &::curl_easy_init,
          &::curl_easy_setopt,         &::curl_easy_strerror, &::curl_global_init,
          &::curl_multi_add_handle,    &::curl_multi_cleanup, &::curl_multi_info_read,
          &::curl_multi_init,          &::curl_multi_perform, &::curl_multi_poll,
          &::curl_multi_remove_handle, &::curl_multi_setopt,  &::curl_multi_wakeup,
          &::curl_slist_append,        &::curl_slist_free_all};
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
  find(library, "curl_easy_cleanup", curl.easy_cleanup);
  find(library, "curl_easy_getinfo", curl.easy_getinfo);
  find(library, "curl_easy_init", curl.easy_init);
  find(library, "curl_easy_setopt", curl.easy_setopt);
  find(library, "curl_easy_strerror", curl.easy_strerror);
  find(library, "curl_global_init", curl.global_init);
  find(library, "curl_multi_add_handle", curl.multi_add_handle);
  find(library, "curl_multi_cleanup", curl.multi_cleanup);
  find(library, "curl_multi_info_read", curl.multi_info_read);
  find(library, "curl_multi_init", curl.multi_init);
  find(library, "curl_multi_perform", curl.multi_perform);
  find(library, "curl_multi_poll", curl.multi_poll);
  find(library, "curl_multi_remove_handle", curl.multi_remove_handle);
  find(library, "curl_multi_setopt", curl.multi_setopt);
  find(library, "curl_multi_wakeup", curl.multi_wakeup);
  find(library, "curl_slist_append", curl.slist_append);
  find(library, "curl_slist_free_all", curl.slist_free_all);
  return curl;
}
#endif

}  // namespace

const Libcurl& libcurl() {
  static const Libcurl curl = load();
  return curl;
}

}  // namespace stfs
