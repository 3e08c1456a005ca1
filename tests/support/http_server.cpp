#include "tests/support/http_server.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string_view>

#include "tessera/base/digest.h"
#include "tessera/base/error.h"
#include "tessera/base/letters.h"

namespace tessera::hub::testing {
namespace {

ServerRequest parse(const std::string& text) {
  std::istringstream lines(text);
  ServerRequest request;
  lines >> request.method >> request.target;
  for (std::string line; std::getline(lines, line);) {
    const auto colon = line.find(':');
    if (colon == std::string::npos) continue;
    const auto name = lower_case(line.substr(0, colon));
    auto value = line.substr(colon + 1);
    value.erase(0, value.find_first_not_of(' '));
    while (!value.empty() && std::isspace(static_cast<unsigned char>(value.back())))
      value.pop_back();
    request.headers[name] = value;
  }
  return request;
}

void send_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return;
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
}

/// A part of a path without "%2F".
std::string without_escapes(std::string text) {
  for (size_t at = text.find("%2F"); at != std::string::npos; at = text.find("%2F"))
    text.replace(at, 3, "/");
  return text;
}

std::string etag_of(const HubFile& file) {
  return file.is_large ? sha256(file.content) : git_blob_name(file.content);
}

}  // namespace

HttpServer::HttpServer(std::function<Reply(const ServerRequest&)> handler)
    : handler_(std::move(handler)) {
  listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* plain = reinterpret_cast<sockaddr*>(&address);
  if (::bind(listener_, plain, size) != 0 || ::listen(listener_, 64) != 0 ||
      ::getsockname(listener_, plain, &size) != 0) {
    system_error("test server");
  }
  port_ = ntohs(address.sin_port);
  thread_ = std::jthread([this] { accept_all(); });
}

HttpServer::~HttpServer() {
  ::shutdown(listener_, SHUT_RDWR);  // accept returns
  thread_.join();
  ::close(listener_);
}

std::vector<ServerRequest> HttpServer::requests() const {
  const std::scoped_lock lock(mutex_);
  return requests_;
}

void HttpServer::accept_all() {
  while (true) {
    const int fd = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (fd < 0) return;
    connections_.emplace_back([this, fd] { answer(fd); });
  }
}

void HttpServer::answer(int fd) {
  std::string text;
  char buffer[4096];
  while (text.find("\r\n\r\n") == std::string::npos) {
    const ssize_t got = ::recv(fd, buffer, sizeof(buffer), 0);
    if (got <= 0) break;
    text.append(buffer, static_cast<size_t>(got));
  }
  auto request = parse(text);
  request.body = text.substr(std::min(text.size(), text.find("\r\n\r\n") + 4));
  const auto expected = static_cast<size_t>(std::atoll(request.header("content-length").c_str()));
  const int64_t most = most_of_body && expected > 0 ? most_of_body(request) : -1;
  while (request.body.size() < expected && (most < 0 || std::ssize(request.body) < most)) {
    const ssize_t got = ::recv(fd, buffer, sizeof(buffer), 0);
    if (got <= 0) break;
    request.body.append(buffer, static_cast<size_t>(got));
  }
  if (most >= 0) {
    ::close(fd);
    return;
  }
  {
    const std::scoped_lock lock(mutex_);
    requests_.push_back(request);
  }
  const auto reply = handler_(request);
  std::string head = fmt::format("HTTP/1.1 {} x\r\nConnection: close\r\n", reply.status);
  for (const auto& [name, value] : reply.headers) head += fmt::format("{}: {}\r\n", name, value);
  if (reply.tells_size && !reply.headers.contains("Content-Length")) {
    head += fmt::format("Content-Length: {}\r\n", reply.body.size());
  }
  send_all(fd, head + "\r\n");
  std::string_view body = request.method == "HEAD" ? "" : std::string_view(reply.body);
  if (reply.breaks_after >= 0) body = body.substr(0, static_cast<size_t>(reply.breaks_after));
  send_all(fd, body);
  if (reply.stalls) std::this_thread::sleep_for(std::chrono::milliseconds(1500));
  ::close(fd);
}

TestHub::TestHub(std::map<std::string, HubFile> files)
    : files_(std::move(files)),
      cdn_([this](const ServerRequest& request) {
        return content(request, request.target.substr(1, request.target.find('?') - 1));
      }),
      hub_([this](const ServerRequest& request) { return answer(request); }) {}

size_t TestHub::num_bodies() const {
  const auto is_body = [](const ServerRequest& request) {
    return request.method == "GET" && !request.target.starts_with("/api/") &&
           !request.target.ends_with(".safetensors");  // a redirection
  };
  return cdn_.requests().size() +
         static_cast<size_t>(std::ranges::count_if(hub_.requests(), is_body));
}

Reply TestHub::answer(const ServerRequest& request) {
  if (unavailable > 0) {
    --unavailable;
    return {.status = 503};
  }
  if (!error_code.empty())
    return {.status = error_status, .headers = {{"X-Error-Code", error_code}}};
  if (!needed_token.empty() && request.header("authorization") != "Bearer " + needed_token) {
    return {.status = 401};
  }
  if (request.target.starts_with("/api/")) return answer_api(request);
  for (const auto* revision : {kCommit, "main"}) {
    const auto folder =
        fmt::format("{}/org/model/resolve/{}/", is_dataset ? "/datasets" : "", revision);
    if (!request.target.starts_with(folder)) continue;
    return describe(request, without_escapes(request.target.substr(folder.size())));
  }
  return {.status = 404};
}

Reply TestHub::answer_api(const ServerRequest& request) const {
  const std::string models =
      fmt::format("/api/{}/org/model/revision/", is_dataset ? "datasets" : "models");
  if (!request.target.starts_with(models)) {
    return {.status = 404, .headers = {{"X-Error-Code", "RepoNotFound"}}};
  }
  const auto revision = request.target.substr(models.size());
  if (revision != "main" && revision != "refs%2Fpr%2F1" && revision != kCommit) {
    return {.status = 404, .headers = {{"X-Error-Code", "RevisionNotFound"}}};
  }
  nlohmann::json siblings = nlohmann::json::array();
  for (const auto& [name, file] : files_) siblings.push_back({{"rfilename", name}});
  return {.body = nlohmann::json{{"sha", kCommit}, {"siblings", siblings}}.dump()};
}

Reply TestHub::describe(const ServerRequest& request, const std::string& name) {
  const auto found = files_.find(name);
  if (found == files_.end()) return {.status = 404, .headers = {{"X-Error-Code", "EntryNotFound"}}};
  const auto& file = found->second;
  if (!file.is_large) {
    auto reply = content(request, name);
    reply.headers["ETag"] = "\"" + (etag.empty() ? etag_of(file) : etag) + "\"";
    reply.headers["X-Repo-Commit"] = kCommit;
    return reply;
  }
  return {.status = 302,
          .headers = {{"Location", cdn_.url() + "/" + name + "?signature=1"},
                      {"X-Repo-Commit", kCommit},
                      {"X-Linked-ETag", "\"" + etag_of(file) + "\""},
                      {"X-Linked-Size", std::to_string(file.content.size())}}};
}

Reply TestHub::content(const ServerRequest& request, const std::string& name) {
  const auto& file = files_.at(name);
  Reply reply{.body = served_instead.contains(name) ? served_instead.at(name) : file.content};
  reply.tells_size = tells_sizes;
  if (!tells_sizes && request.method == "GET" && small_breaks_after >= 0) {
    reply.breaks_after = small_breaks_after;
  }
  const auto range = request.header("range");
  if (knows_ranges && !range.empty()) {
    const auto size = reply.body.size();
    const auto first = static_cast<size_t>(std::atoll(range.c_str() + std::strlen("bytes=")));
    if (first >= size) return {.status = 416};
    reply.status = 206;
    reply.headers["Content-Range"] = fmt::format("bytes {}-{}/{}", first, size - 1, size);
    reply.body.erase(0, first);
  }
  if (file.is_large && request.method == "GET" && breaks > 0) {
    --breaks;
    reply.headers["Content-Length"] = std::to_string(reply.body.size());
    reply.breaks_after = breaks_after;
    reply.stalls = stalls;
  }
  return reply;
}

}  // namespace tessera::hub::testing
