#include "tests/support/push_hub.h"

#include <fmt/format.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tessera/base/digest.h"

namespace tessera::hub::testing {
namespace {

using nlohmann::json;

constexpr const char* kCommit = "0123456789abcdef0123456789abcdef01234567";

Reply refusal(int status, const std::string& error) {
  return {.status = status, .body = json{{"error", error}}.dump()};
}

std::string decoded(std::string_view text) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string bytes;
  uint32_t bits = 0;
  int count = 0;
  for (const char c : text) {
    const auto digit = kDigits.find(c);
    if (digit == std::string_view::npos) continue;
    bits = bits << 6 | static_cast<uint32_t>(digit);
    if ((count += 6) < 8) continue;
    bytes += static_cast<char>(bits >> (count -= 8) & 255);
  }
  return bytes;
}

/// Does a file go beside Git? As the .gitattributes of a new repository say.
bool is_large_name(const std::string& name) {
  return name.ends_with(".safetensors") || name.ends_with(".gguf") || name.ends_with(".parquet");
}

}  // namespace

PushHub::PushHub()
    : store_([this](const ServerRequest& request) { return store(request); }),
      hub_([this](const ServerRequest& request) { return answer(request); }) {
  store_.most_of_body = [this](const ServerRequest& request) -> int64_t {
    if (cut_puts <= 0) return -1;
    --cut_puts;
    return std::atoll(request.header("content-length").c_str()) / 2;
  };
}

std::map<std::string, PushedFile> PushHub::files(const std::string& branch) const {
  const std::scoped_lock lock(mutex_);
  const auto found = branches_.find(branch);
  return found == branches_.end() ? Branch() : found->second;
}

std::vector<std::string> PushHub::messages() const {
  const std::scoped_lock lock(mutex_);
  return messages_;
}

size_t PushHub::num_puts() const {
  const std::scoped_lock lock(mutex_);
  return num_puts_;
}

std::string PushHub::api() const {
  return is_dataset ? "/api/datasets/org/model" : "/api/models/org/model";
}

Reply PushHub::answer(const ServerRequest& request) {
  if (request.method == "PUT") return store(request);
  const std::scoped_lock lock(mutex_);
  if (unavailable > 0) {
    --unavailable;
    return {.status = unavailable_status};
  }
  if (request.header("authorization") != std::string("Bearer ") + kToken)
    return refusal(401, "Invalid credentials in Authorization header");
  if (!error.empty() && request.method == "POST") return refusal(403, error);
  if (exists && branches_.empty()) branches_["main"];
  if (request.target == "/api/repos/create") return create(request);
  const auto page = is_dataset ? "/datasets/org/model" : "/org/model";
  if (request.target == page + std::string(".git/info/lfs/objects/batch")) return batch(request);
  if (request.target.starts_with("/complete/")) return complete(request);
  if (request.target == "/verify") return verify(request);
  if (!request.target.starts_with(api()) || branches_.empty())
    return {.status = 404, .headers = {{"X-Error-Code", "RepoNotFound"}}};
  return answer_api(request, request.target.substr(api().size()));
}

Reply PushHub::answer_api(const ServerRequest& request, const std::string& path) {
  const auto slash = path.find('/', 1);
  const auto what = path.substr(0, slash);
  const auto branch = slash == std::string::npos ? "main" : path.substr(slash + 1);
  if (what == "/branch") {
    branches_[branch] = branches_["main"];
    return {.body = "{}"};
  }
  if (!branches_.contains(branch))
    return {.status = 404, .headers = {{"X-Error-Code", "RevisionNotFound"}}};
  if (what.empty() || what == "/revision")
    return {.body = json{{"sha", kCommit}, {"private", is_private_ && !is_public}}.dump()};
  if (what == "/preupload") return preupload(request, branches_[branch]);
  if (what == "/commit") return commit(request, branches_[branch]);
  return {.status = 404};
}

Reply PushHub::create(const ServerRequest& request) {
  const auto body = json::parse(request.body);
  if (!branches_.empty()) return refusal(409, "You already created this model repo");
  if (body.at("organization") != "org" || body.at("name") != "model")
    return refusal(400, "other name");
  if (body.value("type", "model") != (is_dataset ? "dataset" : "model"))
    return refusal(400, "other type");
  is_private_ = body.at("private");
  branches_["main"];
  return {.body = json{{"url", hub_.url() + "/org/model"}}.dump()};
}

Reply PushHub::preupload(const ServerRequest& request, const Branch& branch) const {
  json files = json::array();
  const auto body = json::parse(request.body);
  for (const auto& file : body.at("files")) {
    const std::string name = file.at("path");
    const auto sample = decoded(file.at("sample").get<std::string>());
    if (sample.size() != std::min<size_t>(512, file.at("size"))) return refusal(400, "sample");
    json answer = {{"path", name},
                   {"uploadMode", is_large_name(name) ? "lfs" : "regular"},
                   {"shouldIgnore", name == ignored}};
    if (const auto there = branch.find(name); there != branch.end()) {
      const auto& content = there->second.content;
      answer["oid"] = there->second.is_large ? sha256(content) : git_blob_name(content);
    }
    files.push_back(answer);
  }
  return {.body = json{{"files", files}}.dump()};
}

Reply PushHub::batch(const ServerRequest& request) {
  const auto body = json::parse(request.body);
  if (body.at("operation") != "upload" || body.at("hash_algo") != "sha256" ||
      request.header("content-type") != "application/vnd.git-lfs+json" ||
      request.header("accept") != "application/vnd.git-lfs+json")
    return refusal(422, "no upload");
  ++signature_;
  json objects = json::array();
  for (const auto& object : body.at("objects")) {
    const std::string oid = object.at("oid");
    const size_t size = object.at("size");
    if (size == 0) return refusal(501, "an empty object");
    json answer = {{"oid", oid}, {"size", size}};
    const auto address = fmt::format("{}/{}?signature={}",
                                     has_own_store ? store_.url() : hub_.url(), oid, signature_);
    json upload = {{"href", address}};
    if (part_bytes > 0 && size > part_bytes) {
      upload = {{"href", hub_.url() + "/complete/" + oid},
                {"header", {{"chunk_size", std::to_string(part_bytes)}}}};
      for (size_t part = 0; part * part_bytes < size; ++part) {
        upload["header"][fmt::format("{:05}", part + 1)] =
            fmt::format("{}&part={}", address, part + 1);
      }
    }
    if (!objects_.contains(oid)) answer["actions"]["upload"] = upload;
    if (!objects_.contains(oid) && verifies)
      answer["actions"]["verify"] = {{"href", hub_.url() + "/verify"}};
    objects.push_back(answer);
  }
  return {
      .body =
          json{{"transfer", part_bytes > 0 ? "multipart" : "basic"}, {"objects", objects}}.dump()};
}

Reply PushHub::store(const ServerRequest& request) {
  const std::scoped_lock lock(mutex_);
  const auto query = request.target.find("?signature=");
  const auto oid = request.target.substr(1, query - 1);
  if (!request.header("authorization").empty()) return refusal(400, "a token for the store");
  if (request.method != "PUT") return refusal(405, "only PUT");
  if (expired_puts > 0) {
    --expired_puts;
    return {.status = 403, .body = "<Error><Code>AccessDenied</Code></Error>"};
  }
  if (failed_puts > 0) {
    --failed_puts;
    return {.status = 500};
  }
  const auto part_at = request.target.find("&part=");
  if (part_at != std::string::npos) {
    const int part = std::atoi(request.target.c_str() + part_at + 6);
    parts_[oid][part] = request.body;
    ++num_puts_;
    return {.headers = {{"ETag", "\"" + git_blob_name(request.body) + "\""}}};
  }
  if (sha256(request.body) != oid) return refusal(400, "other content");
  objects_[oid] = request.body;
  ++num_puts_;
  return {.headers = {{"ETag", "\"whole\""}}};
}

Reply PushHub::complete(const ServerRequest& request) {
  const std::string oid = request.target.substr(std::string("/complete/").size());
  const auto body = json::parse(request.body);
  std::string content;
  int number = 0;
  for (const auto& part : body.at("parts")) {
    ++number;
    if (part.at("partNumber") != number) return refusal(400, "parts out of order");
    const auto& bytes = parts_[oid][number];
    if (part.at("etag") != "\"" + git_blob_name(bytes) + "\"") return refusal(400, "etag");
    const bool is_last = number == static_cast<int>(body.at("parts").size());
    if (!is_last && bytes.size() != part_bytes) return refusal(400, "a short part");
    content += bytes;
  }
  if (sha256(content) != oid || body.at("oid") != oid) return refusal(400, "other content");
  objects_[oid] = content;
  return {.body = "{}"};
}

Reply PushHub::verify(const ServerRequest& request) const {
  const auto body = json::parse(request.body);
  const auto found = objects_.find(body.at("oid"));
  if (found == objects_.end() || found->second.size() != body.at("size"))
    return refusal(404, "not there");
  return {.body = "{}"};
}

Reply PushHub::commit(const ServerRequest& request, Branch& branch) {
  if (request.header("content-type") != "application/x-ndjson") return refusal(400, "type");
  auto changed = branch;
  std::istringstream lines(request.body);
  std::string message;
  for (std::string line; std::getline(lines, line);) {
    const auto entry = json::parse(line);
    const auto& value = entry.at("value");
    if (entry.at("key") == "header") {
      message = value.at("summary");
    } else if (entry.at("key") == "file") {
      const auto content = decoded(value.at("content").get<std::string>());
      if (value.at("encoding") != "base64" || (is_large_name(value.at("path")) && !content.empty()))
        return refusal(400, "a large file within the commit");
      changed[value.at("path")] = {content, false};
    } else {
      const auto object = objects_.find(value.at("oid"));
      if (entry.at("key") != "lfsFile" || value.at("algo") != "sha256" ||
          object == objects_.end() || object->second.size() != value.at("size"))
        return refusal(400, "a large file that is not there");
      changed[value.at("path")] = {object->second, true};
    }
  }
  branch = changed;
  messages_.push_back(message);
  if (lost_answers > 0) {
    --lost_answers;
    return {.status = 502};
  }
  return {.body = json{{"success", true},
                       {"commitOid", kCommit},
                       {"commitUrl", hub_.url() + "/org/model/commit/" + kCommit}}
                      .dump()};
}

}  // namespace tessera::hub::testing
