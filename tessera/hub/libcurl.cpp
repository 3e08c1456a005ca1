#include "tessera/hub/libcurl.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <string>

#include "tessera/base/error.h"

namespace tessera::hub {
namespace {

constexpr const char* kFile = "libcurl.so.4";  // of OpenSSL or GnuTLS

template <typename Function>
void find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  if (function == nullptr) {
    throw SystemError(fmt::format("{} has no {}; install libcurl 7.85 or newer", kFile, name));
  }
}

LibCurl load() {
  void* library = ::dlopen(kFile, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) library = ::dlopen("libcurl-gnutls.so.4", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    throw SystemError(
        fmt::format("{} is not here, and files of the Hub come with it; install libcurl (Debian: "
                    "libcurl4), or give a folder",
                    kFile));
  }
  LibCurl curl{};
  find(library, "curl_global_init", curl.global_init);
  find(library, "curl_easy_init", curl.easy_init);
  find(library, "curl_easy_cleanup", curl.easy_cleanup);
  find(library, "curl_easy_reset", curl.easy_reset);
  find(library, "curl_easy_setopt", curl.easy_setopt);
  find(library, "curl_easy_getinfo", curl.easy_getinfo);
  find(library, "curl_easy_perform", curl.easy_perform);
  find(library, "curl_easy_strerror", curl.easy_strerror);
  find(library, "curl_easy_escape", curl.easy_escape);
  find(library, "curl_free", curl.free);
  find(library, "curl_slist_append", curl.slist_append);
  find(library, "curl_slist_free_all", curl.slist_free_all);
  find(library, "curl_url", curl.url);
  find(library, "curl_url_cleanup", curl.url_cleanup);
  find(library, "curl_url_set", curl.url_set);
  find(library, "curl_url_get", curl.url_get);
  curl.global_init(CURL_GLOBAL_DEFAULT);
  return curl;
}

}  // namespace

const LibCurl& libcurl() {
  static const LibCurl curl = load();
  return curl;
}

}  // namespace tessera::hub
