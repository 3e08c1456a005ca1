// Requests over HTTP, one at a time, over a connection that is kept.
#pragma once

#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/hub/settings.h"

namespace tessera::hub {

/// Nothing is wrong with the request, but it was not answered: no network, a lost or stalled
/// connection, an overloaded server. Worth another attempt.
class Unreachable : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// The server's name is unknown here: no network, most likely.
class NoSuchHost : public Unreachable {
  using Unreachable::Unreachable;
};

/// Bytes of a request's body that have been sent so far. May throw to stop.
using OnSent = std::function<void(int64_t)>;

struct Request {
  std::string url;
  bool only_headers = false;
  int64_t first_byte = 0;  ///< of the body: those before it are there already
  /// A request that sends something: "POST" or "PUT", the body (which must outlive the request)
  /// and lines such as "Content-Type: text/plain".
  std::string method = {};
  std::string_view body = {};
  std::vector<std::string> headers = {};
  OnSent on_sent = {};
  bool is_signed = false;  ///< the address is the permission: no token is sent
  int patience = 1;        ///< times Settings::stall_seconds that an answer may take
};

struct Response {
  long status = 0;
  std::string url;                             ///< that answered, after redirections
  std::map<std::string, std::string> headers;  ///< by lower-case name
  std::string body;                            ///< that no sink took, at most 64 MiB of it

  std::string header(const std::string& name) const;  ///< "" if absent
  int64_t number(const std::string& name) const;      ///< -1 if absent or no number
};

/// Takes the body of a response with a status of 200 or 206 piece by piece. May throw.
using BodySink = std::function<void(const Response&, std::string_view)>;

/// A client. For one thread at a time.
class Http {
 public:
  explicit Http(const Settings& settings);
  ~Http();
  Http(const Http&) = delete;
  Http& operator=(const Http&) = delete;

  /// Sends a request and follows redirections (of a body those alone that ask for the same again). The token goes to the origin (scheme, host, port) of
  /// the endpoint and to no other. What the Hub says of a file (x-repo-commit, x-linked-etag,
  /// x-linked-size) is kept over redirections; with `only_headers` those to other origins are not
  /// followed. Throws Unreachable (deadlines: Settings), also for status 429 and 5xx.
  Response send(const Request& request, const BodySink& sink = {});

  bool is_endpoint(const std::string& url) const;  ///< of the endpoint's origin

 private:
  Response send_once(const Request& request, const BodySink& sink);

  Settings settings_;
  std::string origin_;
  void* curl_;
};

std::string url_encoded(std::string_view text);  ///< as one part of a path: '/' too

}  // namespace tessera::hub
