// libcurl, loaded when the first URL is read: it brings 27 more libraries, and loading them takes
// longer than most commands on a local file.
//
// Thread safety: libcurl() may be called by any thread, and is never unloaded.
#pragma once

#include <curl/curl.h>

namespace stfs {

// The functions of libcurl that stfs calls, without the prefix curl_.
struct Libcurl {
  decltype(&::curl_easy_cleanup) easy_cleanup;
  decltype(&::curl_easy_getinfo) easy_getinfo;
  decltype(&::curl_easy_init) easy_init;
  decltype(&::curl_easy_setopt) easy_setopt;
  decltype(&::curl_easy_strerror) easy_strerror;
  decltype(&::curl_global_init) global_init;
  decltype(&::curl_multi_add_handle) multi_add_handle;
  decltype(&::curl_multi_cleanup) multi_cleanup;
  decltype(&::curl_multi_info_read) multi_info_read;
  decltype(&::curl_multi_init) multi_init;
  decltype(&::curl_multi_perform) multi_perform;
  decltype(&::curl_multi_poll) multi_poll;
  decltype(&::curl_multi_remove_handle) multi_remove_handle;
  decltype(&::curl_multi_setopt) multi_setopt;
  decltype(&::curl_multi_wakeup) multi_wakeup;
  decltype(&::curl_slist_append) slist_append;
  decltype(&::curl_slist_free_all) slist_free_all;
};

// Loads it if no call did. Throws Error{kUnreadable} if this machine has no libcurl.
const Libcurl& libcurl();

}  // namespace stfs
