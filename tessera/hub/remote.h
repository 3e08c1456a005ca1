// What the Hub knows of a model or data set: its files, what is in them.
#pragma once

#include <string>
#include <vector>

#include "tessera/hub/http.h"
#include "tessera/hub/repository_name.h"
#include "tessera/hub/settings.h"

namespace tessera::hub {

struct RemoteFile {
  std::string name;
  std::string etag;   ///< names the content; of large files their SHA-256
  int64_t size = -1;  ///< -1: the server does not say
};

struct RemoteFiles {
  std::string commit;
  std::vector<std::string> names;
};

/// One repository on the Hub. All calls throw UserError if it refuses (no such one, revision or file,
/// a token is missing or not accepted) and Unreachable if it does not answer. For one thread at a
/// time.
class Remote {
 public:
  Remote(const Settings& settings, const RepositoryName& name);

  RemoteFiles list();  ///< all files at the revision, and the commit that it is
  RemoteFile describe(const std::string& commit, const std::string& file);
  /// A file's bytes from `first_byte` on, or from 0 if the server knows no ranges: the status says
  /// which (206, 200; 416: there are none).
  Response read(const std::string& commit, const std::string& file, int64_t first_byte,
                const BodySink& sink);

 private:
  Response send(const Request& request, const BodySink& sink = {});
  std::string file_url(const std::string& commit, const std::string& file) const;
  [[noreturn]] void refuse(const Response& response) const;

  Settings settings_;
  RepositoryName name_;
  Http http_;
};

}  // namespace tessera::hub
