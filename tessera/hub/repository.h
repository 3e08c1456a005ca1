// A repository on the Hub that is written to.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/hub/http.h"
#include "tessera/hub/repository_name.h"
#include "tessera/hub/settings.h"

namespace tessera::hub {

/// A file that is to be sent, as the Hub is asked about it.
struct Upload {
  std::string name;
  int64_t size = 0;
  std::string sample;  ///< its first bytes, at most kSampleBytes
};
inline constexpr size_t kSampleBytes = 512;

struct UploadAnswer {
  bool is_large = false;    ///< stored beside Git, by its SHA-256 (Git LFS)
  bool is_ignored = false;  ///< the repository's .gitignore names it
  /// What the repository has under this name: a SHA-256, or Git's name for small files; "": nothing.
  std::string there;
};

/// Content that is stored beside Git.
struct LargeObject {
  std::string sha256;
  int64_t size = 0;
};

/// How a large object is sent.
struct LargeTransfer {
  std::string url;  ///< of all of it, or where it is said that all parts are there
  std::vector<std::string> part_urls;  ///< of its parts, in order; empty: it is sent as a whole
  int64_t part_bytes = 0;              ///< of each but the last
  std::string verify_url;              ///< to be asked when it is there; "": nobody
};

/// What a commit holds of one file.
struct CommitFile {
  std::string name;
  bool is_large = false;
  LargeObject object;        ///< of a large one
  std::string_view content;  ///< of a small one
};

/// Calls throw UserError if the Hub refuses (token, rights, names; with what it says) and Unreachable if
/// it does not answer. For one thread at a time. The token is sent to the endpoint's own host alone and is in no message.
/// Protocol: https://huggingface.co/docs/hub/api, Git LFS's batch API, and the "multipart" transfer
/// of the Hub.
class Repository {
 public:
  Repository(const Settings& settings, const RepositoryName& name);

  /// Makes sure that it and its branch are there; true: it is new. UserError: it should be
  /// private, but is there and public.
  bool ensure(bool is_private);

  std::vector<UploadAnswer> ask(const std::vector<Upload>& files);
  /// For each object how it is sent; none: the Hub has it.
  std::vector<std::optional<LargeTransfer>> transfers_of(const std::vector<LargeObject>& objects);
  /// Sends bytes to an address that came with a LargeTransfer; returns their ETag.
  std::string put(const std::string& url, std::string_view bytes, const OnSent& on_sent);
  void complete(const LargeTransfer& transfer, const LargeObject& object,
                const std::vector<std::string>& etags);
  void verify(const LargeTransfer& transfer, const LargeObject& object);
  /// The commit's page.
  std::string commit(const std::string& message, const std::vector<CommitFile>& files);

  const RepositoryName& name() const { return name_; }

 private:
  std::string api(const std::string& what) const;
  Response send(const Request& request);
  nlohmann::json post(const std::string& url, const std::string& body, const std::string& type,
                      int patience = 1);
  void create(bool is_private);
  [[noreturn]] void refuse(const Response& response) const;

  Settings settings_;
  RepositoryName name_;
  Http http_;
};

/// The address that a LargeTransfer gave is no longer valid: ask for another.
class Expired : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace tessera::hub
