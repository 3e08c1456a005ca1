#include "tessera/hub/remote.h"

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/base/shown_urls.h"
#include "tessera/hub/cache.h"

namespace tessera::hub {
namespace {

constexpr size_t kMaxListBytes = 64 << 20;

/// An ETag without quotes and "W/", fit to be a file's name; "" if it is not.
std::string name_of_etag(std::string etag) {
  if (etag.starts_with("W/")) etag.erase(0, 2);
  std::erase(etag, '"');
  const bool is_plain = std::ranges::all_of(
      etag, [](unsigned char c) { return std::isalnum(c) != 0 || c == '-' || c == '_'; });
  return is_plain && etag.size() <= 128 ? etag : "";
}

}  // namespace

Remote::Remote(const Settings& settings, const RepositoryName& name)
    : settings_(settings), name_(name), http_(settings) {}

RemoteFiles Remote::list() {
  std::string text;
  const auto url = fmt::format("{}/api/{}/{}/revision/{}", settings_.endpoint, name_.kinds(),
                               name_.repository, url_encoded(name_.revision));
  send({.url = url}, [&](const Response&, std::string_view part) {
    if (text.size() + part.size() > kMaxListBytes) {
      user_error("{}: an endless answer", shown_urls(url));
    }
    text += part;
  });
  const auto root = nlohmann::json::parse(text, nullptr, false);
  RemoteFiles files;
  if (root.is_object() && root.contains("sha") && root["sha"].is_string())
    files.commit = root["sha"];
  if (!is_commit(files.commit) || !root.contains("siblings") || !root["siblings"].is_array()) {
    user_error("{}: expected the Hub's description of a {}, got something else; check HF_ENDPOINT",
               shown_urls(url), name_.noun());
  }
  for (const auto& file : root["siblings"]) {
    if (!file.is_object() || !file.contains("rfilename") || !file["rfilename"].is_string())
      continue;
    files.names.push_back(file["rfilename"]);
  }
  return files;
}

RemoteFile Remote::describe(const std::string& commit, const std::string& file) {
  const auto response = send({.url = file_url(commit, file), .only_headers = true});
  const bool is_linked = !response.header("x-linked-etag").empty();
  const auto etag = name_of_etag(response.header(is_linked ? "x-linked-etag" : "etag"));
  if (etag.empty()) {
    user_error("{}: {}: the server gives no usable ETag for it; check HF_ENDPOINT", name_.text(),
               file);
  }
  return {file, etag, response.number(is_linked ? "x-linked-size" : "content-length")};
}

Response Remote::read(const std::string& commit, const std::string& file, int64_t first_byte,
                      const BodySink& sink) {
  return send({.url = file_url(commit, file), .first_byte = first_byte}, sink);
}

Response Remote::send(const Request& request, const BodySink& sink) {
  auto response = http_.send(request, sink);
  if (response.status < 400 || response.status == 416) return response;
  if (!http_.is_endpoint(response.url)) {  // a signed address that is no longer valid: ask again
    throw Unreachable(
        fmt::format("{}: answers with status {}", shown_urls(response.url), response.status));
  }
  refuse(response);
}

std::string Remote::file_url(const std::string& commit, const std::string& file) const {
  return fmt::format("{}/{}/resolve/{}/{}", settings_.endpoint, name_.page(), commit,
                     url_encoded(file));
}

void Remote::refuse(const Response& response) const {
  const auto& model = name_.repository;
  const auto* noun = name_.noun();
  const auto endpoint = shown_urls(settings_.endpoint);
  const auto code = response.header("x-error-code");
  const auto hint = cached_hint(settings_.cache, name_);
  const bool has_token = !settings_.token.empty();
  if (code == "GatedRepo") {
    user_error("{}: its authors give access one by one: accept their terms at {}/{}, then {}",
               model, endpoint, name_.page(), has_token ? "run again" : "set HF_TOKEN");
  }
  if (code == "RevisionNotFound") {
    user_error("{}: {} knows no revision '{}' of it{}", model, endpoint, name_.revision, hint);
  }
  if (code == "EntryNotFound") {
    user_error("{}: {} lists a file that it does not have ({})", name_.text(), endpoint,
               shown_urls(response.url));
  }
  if (response.status == 404 || code == "RepoNotFound") {
    user_error("{}: no such folder, and no such {} at {}{}{}", model, noun, endpoint,
               has_token ? "" : " (if it is private: set HF_TOKEN)", hint);
  }
  if (response.status == 401) {
    user_error("{}: {}{}", model,
               has_token
                   ? endpoint + " does not accept the token: set HF_TOKEN to a valid one"
                   : fmt::format("no such {} at {}, or one that needs HF_TOKEN", noun, endpoint),
               hint);
  }
  user_error("{}: {} refuses access (status {}): {}", model, endpoint, response.status,
             has_token ? "HF_TOKEN gives no right to read it" : "set HF_TOKEN");
}

}  // namespace tessera::hub
