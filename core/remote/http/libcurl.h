// Loads libcurl when the first URL is parsed. stfs is not linked with libcurl, because libcurl
// depends on 27 other libraries, and loading them takes longer than most commands on a local file.
//
// Thread safety: libcurl() may be called from any thread. The library is never unloaded.
#pragma once

#include <curl/curl.h>

// The functions of libcurl that stfs calls, without the prefix curl_.
#define STFS_LIBCURL(each)                                                                        \
  each(easy_cleanup) each(easy_getinfo) each(easy_init) each(easy_setopt) each(easy_strerror)     \
      each(free) each(getdate) each(global_init) each(multi_add_handle) each(multi_cleanup)       \
          each(multi_info_read) each(multi_init) each(multi_perform) each(multi_poll)             \
              each(multi_remove_handle) each(multi_setopt) each(multi_wakeup) each(share_cleanup) \
                  each(share_init) each(share_setopt) each(slist_append) each(slist_free_all)     \
                      each(url) each(url_cleanup) each(url_get) each(url_set)

namespace stfs {

struct Libcurl {
#define STFS_MEMBER(name) decltype(&::curl_##name) name;  // NOLINT(bugprone-macro-parentheses)
  STFS_LIBCURL(STFS_MEMBER)
#undef STFS_MEMBER
};

// Returns the functions; loads the library on the first call. Throws Error kUnreadable if libcurl
// is not installed on this machine or lacks a function.
const Libcurl& libcurl();

}  // namespace stfs
