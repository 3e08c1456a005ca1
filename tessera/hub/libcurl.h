// libcurl's functions, from the library that is there when they are first needed: what never asks
// the Hub, as every rank, does not load it and its two dozen libraries.
#pragma once

#include <curl/curl.h>

namespace tessera::hub {

/// Functions named as in libcurl, without "curl_".
struct LibCurl {
  decltype(&curl_global_init) global_init;
  decltype(&curl_easy_init) easy_init;
  decltype(&curl_easy_cleanup) easy_cleanup;
  decltype(&curl_easy_reset) easy_reset;
  CURLcode (*easy_setopt)(CURL* curl, CURLoption option, ...);
  CURLcode (*easy_getinfo)(CURL* curl, CURLINFO info, ...);
  decltype(&curl_easy_perform) easy_perform;
  decltype(&curl_easy_strerror) easy_strerror;
  decltype(&curl_easy_escape) easy_escape;
  decltype(&curl_free) free;
  decltype(&curl_slist_append) slist_append;
  decltype(&curl_slist_free_all) slist_free_all;
  decltype(&curl_url) url;
  decltype(&curl_url_cleanup) url_cleanup;
  decltype(&curl_url_set) url_set;
  decltype(&curl_url_get) url_get;
};

/// Loaded once. SystemError: there is no libcurl, or one without these.
const LibCurl& libcurl();

}  // namespace tessera::hub
