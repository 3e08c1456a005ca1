#include "tessera/hub/repository.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tessera/base/base64.h"
#include "tessera/base/error.h"
#include "tessera/base/shown_urls.h"
#include "tessera/base/text.h"

namespace tessera::hub {
namespace {

using nlohmann::json;

constexpr const char* kJson = "application/json";
constexpr const char* kLines = "application/x-ndjson";
constexpr const char* kLfs = "application/vnd.git-lfs+json";
constexpr size_t kFilesAtOnce = 256;
constexpr int kPatience = 5;  // the Hub looks at every file of a commit

/// Git LFS answers in its own type.
std::string accepted(const std::string& type) { return type == kLfs ? kLfs : kJson; }

json parsed(const std::string& text) { return json::parse(text, nullptr, false); }

/// A member of an object that is a text; "" if there is none.
std::string text_in(const json& object, const char* key) {
  if (!object.is_object()) return "";
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

/// What the server says of a refusal, as part of a line.
std::string said(const Response& response) {
  constexpr size_t kMostShown = 300;
  auto text = text_in(parsed(response.body), "error");
  if (text.empty()) text = response.header("x-error-message");
  if (text.empty()) text = text_in(parsed(response.body), "message");
  return printable(shown_urls(text.substr(0, kMostShown)));
}

[[noreturn]] void not_understood(const std::string& url) {
  user_error("{}: expected an answer as the Hub gives it, got something else; check HF_ENDPOINT",
             shown_urls(url));
}

/// Parts and their size stand as texts or numbers among the headers of an action.
int64_t whole_number(const json& value) {
  if (value.is_number_integer()) return value;
  return value.is_string() ? std::atoll(value.get<std::string>().c_str()) : 0;
}

std::optional<LargeTransfer> transfer_of(const json& object, int64_t size, const std::string& url) {
  if (!object.contains("actions")) return std::nullopt;
  const auto& actions = object["actions"];
  if (!actions.is_object() || !actions.contains("upload")) return std::nullopt;
  const auto& upload = actions["upload"];
  LargeTransfer transfer{
      .url = text_in(upload, "href"), .part_urls = {}, .part_bytes = size, .verify_url = {}};
  if (actions.contains("verify")) transfer.verify_url = text_in(actions["verify"], "href");
  if (transfer.url.empty()) not_understood(url);
  if (!upload.contains("header") || !upload["header"].contains("chunk_size")) return transfer;
  transfer.part_bytes = whole_number(upload["header"]["chunk_size"]);
  std::map<int64_t, std::string> parts;
  for (const auto& [key, value] : upload["header"].items()) {
    const bool is_number = !key.empty() && key.find_first_not_of("0123456789") == std::string::npos;
    if (is_number && value.is_string()) parts[std::atoll(key.c_str())] = value;
  }
  for (auto& [number, address] : parts) transfer.part_urls.push_back(std::move(address));
  const auto needed = transfer.part_bytes > 0
                          ? (size + transfer.part_bytes - 1) / transfer.part_bytes
                          : int64_t{-1};
  if (std::ssize(transfer.part_urls) != needed) not_understood(url);
  return transfer;
}

}  // namespace

Repository::Repository(const Settings& settings, const RepositoryName& name)
    : settings_(settings), name_(name), http_(settings) {}

std::string Repository::api(const std::string& what) const {
  return fmt::format("{}/api/{}/{}{}", settings_.endpoint, name_.kinds(), name_.repository, what);
}

Response Repository::send(const Request& request) {
  auto response = http_.send(request);
  if (response.status < 400) return response;
  if (request.is_signed || !http_.is_endpoint(response.url)) {
    throw Expired(fmt::format("{}: answers with status {} {}", shown_urls(response.url),
                              response.status, said(response)));
  }
  return response;
}

json Repository::post(const std::string& url, const std::string& body, const std::string& type,
                      int patience) {
  const auto response = send({.url = url,
                              .method = "POST",
                              .body = body,
                              .headers = {"Content-Type: " + type, "Accept: " + accepted(type)},
                              .patience = patience});
  if (response.status >= 400) refuse(response);
  return parsed(response.body);
}

bool Repository::ensure(bool is_private) {
  // The Hub is asked for the privacy of what it made, too, before anything is sent.
  const auto revision = "/revision/" + url_encoded(name_.revision);
  auto there = send({.url = api(revision)});
  const auto code = there.header("x-error-code");
  const bool is_missing = code == "RepoNotFound" || (there.status == 404 && code.empty());
  if (is_missing) create(is_private);
  if ((is_missing && name_.revision != "main") || code == "RevisionNotFound")
    post(api("/branch/" + url_encoded(name_.revision)), "{}", kJson);
  if (is_missing || code == "RevisionNotFound") there = send({.url = api("")});
  if (there.status >= 400) refuse(there);
  const auto about = parsed(there.body);
  if (!about.is_object()) not_understood(api(revision));
  if (is_private && !about.value("private", false)) {
    user_error("{}: is public at {}; make it private there, or push without private", name_.text(),
               shown_urls(settings_.endpoint));
  }
  return is_missing;
}

void Repository::create(bool is_private) {
  const auto slash = name_.repository.find('/');
  json body = {{"organization", name_.repository.substr(0, slash)},
               {"name", name_.repository.substr(slash + 1)},
               {"private", is_private}};
  if (name_.kind == RepositoryKind::dataset) body["type"] = "dataset";
  const auto text = body.dump();
  const auto response = send({.url = settings_.endpoint + "/api/repos/create",
                              .method = "POST",
                              .body = text,
                              .headers = {std::string("Content-Type: ") + kJson}});
  // 409: another push was first.
  if (response.status >= 400 && response.status != 409) refuse(response);
}

std::vector<UploadAnswer> Repository::ask(const std::vector<Upload>& files) {
  const auto url = api("/preupload/" + url_encoded(name_.revision));
  std::vector<UploadAnswer> answers;
  for (size_t begin = 0; begin < files.size(); begin += kFilesAtOnce) {
    json list = json::array();
    const auto end = std::min(files.size(), begin + kFilesAtOnce);
    for (size_t i = begin; i < end; ++i) {
      list.push_back(
          {{"path", files[i].name}, {"size", files[i].size}, {"sample", base64(files[i].sample)}});
    }
    const auto answer = post(url, json{{"files", list}}.dump(), kJson);
    if (!answer.is_object() || !answer.contains("files") || !answer["files"].is_array())
      not_understood(url);
    std::map<std::string, UploadAnswer> found;
    for (const auto& file : answer["files"]) {
      const auto mode = text_in(file, "uploadMode");
      if (mode != "lfs" && mode != "regular") not_understood(url);
      found[text_in(file, "path")] = {.is_large = mode == "lfs",
                                      .is_ignored = file.value("shouldIgnore", false),
                                      .there = text_in(file, "oid")};
    }
    for (size_t i = begin; i < end; ++i) {
      if (!found.contains(files[i].name)) not_understood(url);
      answers.push_back(found[files[i].name]);
    }
  }
  return answers;
}

std::vector<std::optional<LargeTransfer>> Repository::transfers_of(
    const std::vector<LargeObject>& objects) {
  const auto url =
      fmt::format("{}/{}.git/info/lfs/objects/batch", settings_.endpoint, name_.page());
  std::vector<std::optional<LargeTransfer>> transfers;
  for (size_t begin = 0; begin < objects.size(); begin += kFilesAtOnce) {
    json list = json::array();
    const auto end = std::min(objects.size(), begin + kFilesAtOnce);
    for (size_t i = begin; i < end; ++i)
      list.push_back({{"oid", objects[i].sha256}, {"size", objects[i].size}});
    const json body = {{"operation", "upload"},
                       {"transfers", {"basic", "multipart"}},
                       {"objects", list},
                       {"hash_algo", "sha256"},
                       {"ref", {{"name", name_.revision}}}};
    const auto answer = post(url, body.dump(), kLfs);
    if (!answer.is_object() || !answer.contains("objects") || !answer["objects"].is_array())
      not_understood(url);
    std::map<std::string, json> found;
    for (const auto& object : answer["objects"]) found[text_in(object, "oid")] = object;
    for (size_t i = begin; i < end; ++i) {
      const auto object = found.find(objects[i].sha256);
      if (object == found.end()) not_understood(url);
      if (object->second.contains("error")) {
        user_error("{}: {} refuses a file of {} bytes: {}", name_.repository,
                   shown_urls(settings_.endpoint), objects[i].size,
                   printable(text_in(object->second["error"], "message")));
      }
      transfers.push_back(transfer_of(object->second, objects[i].size, url));
    }
  }
  return transfers;
}

std::string Repository::put(const std::string& url, std::string_view bytes, const OnSent& on_sent) {
  return send({.url = url,
               .method = "PUT",
               .body = bytes,
               .on_sent = on_sent,
               .is_signed = true,
               .patience = kPatience})
      .header("etag");
}

void Repository::complete(const LargeTransfer& transfer, const LargeObject& object,
                          const std::vector<std::string>& etags) {
  json parts = json::array();
  for (size_t i = 0; i < etags.size(); ++i)
    parts.push_back({{"partNumber", i + 1}, {"etag", etags[i]}});
  post(transfer.url, json{{"oid", object.sha256}, {"parts", parts}}.dump(), kLfs, kPatience);
}

void Repository::verify(const LargeTransfer& transfer, const LargeObject& object) {
  post(transfer.verify_url, json{{"oid", object.sha256}, {"size", object.size}}.dump(), kJson,
       kPatience);
}

std::string Repository::commit(const std::string& message, const std::vector<CommitFile>& files) {
  const auto line = [](const char* key, json value) {
    return json{{"key", key}, {"value", std::move(value)}}.dump() + "\n";
  };
  std::string body = line("header", {{"summary", message}, {"description", ""}});
  for (const auto& file : files) {
    body += file.is_large ? line("lfsFile", {{"path", file.name},
                                             {"algo", "sha256"},
                                             {"oid", file.object.sha256},
                                             {"size", file.object.size}})
                          : line("file", {{"path", file.name},
                                          {"encoding", "base64"},
                                          {"content", base64(file.content)}});
  }
  const auto answer = post(api("/commit/" + url_encoded(name_.revision)), body, kLines, kPatience);
  return text_in(answer, "commitUrl");
}

void Repository::refuse(const Response& response) const {
  const auto endpoint = shown_urls(settings_.endpoint);
  const auto words = said(response);
  const auto reason = words.empty() ? "" : " (" + words + ")";
  if (response.status == 401) {
    user_error("{}: {} does not accept the token: set HF_TOKEN to a valid one{}", name_.repository,
               endpoint, reason);
  }
  if (response.status == 403) {
    user_error(
        "{}: the token gives no right to write to it: set HF_TOKEN to one with write access, "
        "from {}/settings/tokens{}",
        name_.repository, endpoint, reason);
  }
  user_error("{}: {} refuses it with status {}{}", name_.repository, endpoint, response.status,
             reason);
}

}  // namespace tessera::hub
