// A Hub to which files are pushed, and the store beside it, on 127.0.0.1.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>
#include <vector>

#include "tests/support/http_server.h"

namespace tessera::hub::testing {

/// What a branch has of a file.
struct PushedFile {
  std::string content;
  bool is_large = false;
  bool operator==(const PushedFile&) const = default;
};

/// Takes what is pushed to "org/model" (a data set's pages: "datasets/org/model") as the Hub does: looks at token, hashes,
/// sizes and parts, and refuses what is not right.
class PushHub {
 public:
  PushHub();

  std::string endpoint() const { return hub_.url(); }
  std::vector<ServerRequest> hub_requests() const { return hub_.requests(); }
  std::vector<ServerRequest> store_requests() const { return store_.requests(); }

  std::map<std::string, PushedFile> files(const std::string& branch = "main") const;
  std::vector<std::string> messages() const;  ///< of the commits
  bool is_private() const { return is_private_; }
  size_t num_puts() const;  ///< contents and parts that came whole

  static constexpr const char* kToken = "hf_secret";

  // How it behaves. To be set before requests come.
  bool exists = false;  ///< the repository, with the branch main
  bool is_public = false;
  bool is_dataset = false;
  size_t part_bytes = 0;      ///< above 0: large files come in such parts
  bool has_own_store = true;  ///< another host takes large files; else the Hub itself
  bool verifies = true;       ///< wants to be asked when a large file is there
  std::string error;          ///< what it says where it refuses, with status 403
  std::atomic<int> unavailable{
      0};  ///< answers of the Hub with `unavailable_status` before it works
  int unavailable_status = 503;
  std::atomic<int> cut_puts{0};      ///< contents whose connection is cut in the middle
  std::atomic<int> failed_puts{0};   ///< contents that the store answers with status 500
  std::atomic<int> expired_puts{0};  ///< with status 403
  std::atomic<int> lost_answers{0};  ///< of commits that are made
  std::string ignored;               ///< a name in the repository's .gitignore

 private:
  using Branch = std::map<std::string, PushedFile>;

  Reply answer(const ServerRequest& request);
  Reply answer_api(const ServerRequest& request, const std::string& path);
  Reply create(const ServerRequest& request);
  Reply preupload(const ServerRequest& request, const Branch& branch) const;
  Reply batch(const ServerRequest& request);
  Reply complete(const ServerRequest& request);
  Reply verify(const ServerRequest& request) const;
  Reply commit(const ServerRequest& request, Branch& branch);
  Reply store(const ServerRequest& request);
  std::string api() const;

  mutable std::mutex mutex_;
  std::map<std::string, Branch> branches_;
  std::map<std::string, std::string> objects_;  ///< large contents by SHA-256
  std::map<std::string, std::map<int, std::string>> parts_;
  std::vector<std::string> messages_;
  bool is_private_ = false;
  size_t num_puts_ = 0;
  int signature_ = 0;  ///< in addresses of the store; those of before are no longer valid
  HttpServer store_, hub_;
};

}  // namespace tessera::hub::testing
