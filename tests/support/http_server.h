// A small HTTP server on 127.0.0.1 for tests, and a Hub made of two of them.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace tessera::hub::testing {

struct ServerRequest {
  std::string method, target;                  ///< "GET", "/path?query"
  std::map<std::string, std::string> headers;  ///< by lower-case name
  std::string body;
  std::string header(const std::string& name) const {
    const auto found = headers.find(name);
    return found == headers.end() ? "" : found->second;
  }
};

struct Reply {
  int status = 200;
  std::map<std::string, std::string> headers;
  std::string body;
  int64_t breaks_after = -1;  ///< bytes of the body after which the connection is closed; -1: none
  bool stalls = false;        ///< where it would break, nothing comes for a while
  bool tells_size = true;     ///< Content-Length
};

/// Answers one request per connection with what `handler` says.
class HttpServer {
 public:
  explicit HttpServer(std::function<Reply(const ServerRequest&)> handler);
  ~HttpServer();

  /// Closes the connection after so many bytes of a request's body; -1: takes it whole. To be set
  /// before requests come.
  std::function<int64_t(const ServerRequest&)> most_of_body;

  std::string url() const { return "http://127.0.0.1:" + std::to_string(port_); }
  std::vector<ServerRequest> requests() const;  ///< all so far

 private:
  void accept_all();
  void answer(int fd);

  std::function<Reply(const ServerRequest&)> handler_;
  int listener_ = -1, port_ = 0;
  mutable std::mutex mutex_;
  std::vector<ServerRequest> requests_;
  std::vector<std::jthread> connections_;
  std::jthread thread_;
};

struct HubFile {
  std::string content;
  bool is_large = false;  ///< named by its SHA-256 and redirected to the other server
};

/// A Hub with one model (or data set), "org/model", at branches of one commit each, and the server to which it
/// redirects for large files.
class TestHub {
 public:
  explicit TestHub(std::map<std::string, HubFile> files);

  std::string endpoint() const { return hub_.url(); }
  std::vector<ServerRequest> hub_requests() const { return hub_.requests(); }
  std::vector<ServerRequest> cdn_requests() const { return cdn_.requests(); }
  size_t num_bodies() const;  ///< contents sent, by both

  static constexpr const char* kCommit = "0123456789abcdef0123456789abcdef01234567";

  // How it behaves. To be set before requests come.
  std::string needed_token;  ///< else status 401
  bool is_dataset = false;
  std::string error_code;  ///< of x-error-code, with error_status, on everything
  int error_status = 404;
  std::atomic<int> unavailable{0};  ///< answers of 503 before it works
  std::atomic<int> breaks{0};       ///< bodies of large files that break off
  int64_t breaks_after = 0;
  bool stalls = false;
  bool knows_ranges = true;
  bool tells_sizes = true;          ///< of contents
  int64_t small_breaks_after = -1;  ///< bytes of small files without a size; -1: all come
  std::string etag;                 ///< of small files, in place of Git's name
  std::map<std::string, std::string> served_instead;  ///< contents that are not what is announced

 private:
  Reply answer(const ServerRequest& request);
  Reply answer_api(const ServerRequest& request) const;
  Reply describe(const ServerRequest& request, const std::string& name);
  Reply content(const ServerRequest& request, const std::string& name);

  std::map<std::string, HubFile> files_;
  HttpServer cdn_, hub_;
};

}  // namespace tessera::hub::testing
