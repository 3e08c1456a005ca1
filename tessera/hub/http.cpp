#include "tessera/hub/http.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <exception>
#include <memory>

#include "tessera/base/error.h"
#include "tessera/base/letters.h"
#include "tessera/base/shown_urls.h"
#include "tessera/hub/libcurl.h"

namespace tessera::hub {
namespace {

constexpr int kMaxRedirections = 10;
constexpr size_t kMaxBodyBytes = 64 << 20;

std::string_view trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return "";
  return text.substr(first, text.find_last_not_of(" \t\r\n") - first + 1);
}

/// A part of `location`, which may be relative to `base`; "" if it is no URL.
std::string url_part(const std::string& base, const std::string& location, CURLUPart part) {
  const auto& curl = libcurl();
  const std::unique_ptr<CURLU, decltype(curl.url_cleanup)> url(curl.url(), curl.url_cleanup);
  char* text = nullptr;
  if (curl.url_set(url.get(), CURLUPART_URL, base.c_str(), 0) != CURLUE_OK ||
      curl.url_set(url.get(), CURLUPART_URL, location.c_str(), 0) != CURLUE_OK ||
      curl.url_get(url.get(), part, &text, CURLU_DEFAULT_PORT) != CURLUE_OK) {
    return "";
  }
  std::string found = text;
  curl.free(text);
  return found;
}

std::string origin_of(const std::string& url) {
  return url_part(url, url, CURLUPART_SCHEME) + "://" + url_part(url, url, CURLUPART_HOST) + ":" +
         url_part(url, url, CURLUPART_PORT);
}

bool is_redirection(long status) {
  return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}

/// What libcurl calls back with while a request is under way. Exceptions wait until it has
/// returned.
struct Transfer {
  Response response;
  const BodySink& sink;
  const OnSent& on_sent;
  CURL* curl;
  std::exception_ptr error;

  static size_t on_header(char* data, size_t size, size_t count, void* self) {
    auto& headers = static_cast<Transfer*>(self)->response.headers;
    const std::string_view line(data, size * count);
    const auto colon = line.find(':');
    if (line.starts_with("HTTP/")) {
      headers.clear();  // an interim response came before
    } else if (colon != std::string_view::npos) {
      headers[lower_case(line.substr(0, colon))] = trimmed(line.substr(colon + 1));
    }
    return size * count;
  }

  static size_t on_body(char* data, size_t size, size_t count, void* self) {
    auto& transfer = *static_cast<Transfer*>(self);
    auto& response = transfer.response;
    libcurl().easy_getinfo(transfer.curl, CURLINFO_RESPONSE_CODE, &response.status);
    if (!transfer.sink || (response.status != 200 && response.status != 206)) {
      response.body.append(data, std::min(size * count, kMaxBodyBytes - response.body.size()));
      return size * count;
    }
    try {
      transfer.sink(response, {data, size * count});
      return size * count;
    } catch (...) {
      transfer.error = std::current_exception();
      return 0;
    }
  }

  static int on_progress(void* self, curl_off_t, curl_off_t, curl_off_t, curl_off_t sent) {
    auto& transfer = *static_cast<Transfer*>(self);
    try {
      transfer.on_sent(sent);
      return 0;
    } catch (...) {
      transfer.error = std::current_exception();
      return 1;
    }
  }
};

void set_body(CURL* curl, const Request& request, Transfer& transfer) {
  const auto& easy = libcurl();
  easy.easy_setopt(curl, CURLOPT_POSTFIELDS, request.body.empty() ? "" : request.body.data());
  easy.easy_setopt(curl, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(request.body.size()));
  easy.easy_setopt(curl, CURLOPT_CUSTOMREQUEST, request.method.c_str());
  if (!request.on_sent) return;
  easy.easy_setopt(curl, CURLOPT_NOPROGRESS, 0L);
  easy.easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, Transfer::on_progress);
  easy.easy_setopt(curl, CURLOPT_XFERINFODATA, &transfer);
}

struct Headers {
  curl_slist* list = nullptr;

  void add(const std::string& line) { list = libcurl().slist_append(list, line.c_str()); }
  ~Headers() { libcurl().slist_free_all(list); }
};

}  // namespace

std::string Response::header(const std::string& name) const {
  const auto found = headers.find(name);
  return found == headers.end() ? "" : found->second;
}

int64_t Response::number(const std::string& name) const {
  const auto text = header(name);
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && value >= 0 ? value : -1;
}

Http::Http(const Settings& settings) : settings_(settings), origin_(origin_of(settings.endpoint)) {
  if (!settings.endpoint.starts_with("http://") && !settings.endpoint.starts_with("https://")) {
    user_error("HF_ENDPOINT: expected http://host or https://host, got '{}'",
               shown_urls(settings.endpoint));
  }
  curl_ = libcurl().easy_init();
  if (curl_ == nullptr) throw SystemError("libcurl cannot be started");
}

Http::~Http() { libcurl().easy_cleanup(curl_); }

bool Http::is_endpoint(const std::string& url) const { return origin_of(url) == origin_; }

Response Http::send_once(const Request& request, const BodySink& sink) {
  const auto& curl = libcurl();
  curl.easy_reset(curl_);  // the connection stays
  Headers headers;
  headers.add("Accept-Encoding: identity");  // sizes and ranges are those of the file
  if (!settings_.token.empty() && !request.is_signed && is_endpoint(request.url)) {
    headers.add("Authorization: Bearer " + settings_.token);
  }
  if (request.first_byte > 0) headers.add(fmt::format("Range: bytes={}-", request.first_byte));
  Transfer transfer{.response = {.status = 0, .url = request.url, .headers = {}, .body = {}},
                    .sink = sink,
                    .on_sent = request.on_sent,
                    .curl = curl_,
                    .error = {}};
  if (!request.method.empty()) {
    if (request.headers.empty()) headers.add("Content-Type:");  // none instead of libcurl's
    for (const auto& line : request.headers) headers.add(line);
    headers.add("Expect:");  // no waiting for leave to send
    set_body(curl_, request, transfer);
  }
  curl.easy_setopt(curl_, CURLOPT_URL, request.url.c_str());
  // What begins encrypted stays encrypted.
  curl.easy_setopt(curl_, CURLOPT_PROTOCOLS_STR,
                   origin_.starts_with("https") ? "https" : "http,https");
  curl.easy_setopt(curl_, CURLOPT_HTTPHEADER, headers.list);
  curl.easy_setopt(curl_, CURLOPT_USERAGENT, "tessera");
  if (request.only_headers) curl.easy_setopt(curl_, CURLOPT_NOBODY, 1L);
  curl.easy_setopt(curl_, CURLOPT_NOSIGNAL, 1L);
  curl.easy_setopt(curl_, CURLOPT_CONNECTTIMEOUT, long{settings_.connect_seconds});
  curl.easy_setopt(curl_, CURLOPT_LOW_SPEED_LIMIT, 1L);
  curl.easy_setopt(curl_, CURLOPT_LOW_SPEED_TIME, long{settings_.stall_seconds} * request.patience);
  curl.easy_setopt(curl_, CURLOPT_HEADERFUNCTION, Transfer::on_header);
  curl.easy_setopt(curl_, CURLOPT_HEADERDATA, &transfer);
  curl.easy_setopt(curl_, CURLOPT_WRITEFUNCTION, Transfer::on_body);
  curl.easy_setopt(curl_, CURLOPT_WRITEDATA, &transfer);
  const CURLcode code = curl.easy_perform(curl_);
  if (transfer.error) std::rethrow_exception(transfer.error);
  if (code != CURLE_OK) {
    const auto reason = fmt::format("{}: {}", origin_of(request.url), curl.easy_strerror(code));
    if (code == CURLE_COULDNT_RESOLVE_HOST) throw NoSuchHost(reason);
    throw Unreachable(reason);
  }
  curl.easy_getinfo(curl_, CURLINFO_RESPONSE_CODE, &transfer.response.status);
  return transfer.response;
}

Response Http::send(const Request& request, const BodySink& sink) {
  Request next = request;
  std::map<std::string, std::string> kept;
  for (int i = 0; i <= kMaxRedirections; ++i) {
    auto response = send_once(next, sink);
    if (response.status == 429 || response.status >= 500) {
      throw Unreachable(
          fmt::format("{}: answers with status {}", origin_of(next.url), response.status));
    }
    for (const auto* name : {"x-repo-commit", "x-linked-etag", "x-linked-size"}) {
      if (response.headers.contains(name)) kept.emplace(name, response.headers[name]);
    }
    const auto target = url_part(next.url, response.header("location"), CURLUPART_URL);
    const bool repeats = next.method.empty() || response.status == 307 || response.status == 308;
    const bool ends_here = !is_redirection(response.status) || target.empty() || !repeats ||
                           (request.only_headers && !is_endpoint(target));
    if (ends_here) {
      for (const auto& [name, value] : kept) response.headers[name] = value;
      return response;
    }
    next.url = target;
  }
  user_error("{}: more than {} redirections; check HF_ENDPOINT", shown_urls(request.url),
             kMaxRedirections);
}

std::string url_encoded(std::string_view text) {
  char* encoded = libcurl().easy_escape(nullptr, text.data(), static_cast<int>(text.size()));
  std::string result = encoded;
  libcurl().free(encoded);
  return result;
}

}  // namespace tessera::hub
