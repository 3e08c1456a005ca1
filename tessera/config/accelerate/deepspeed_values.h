// The values of one DeepSpeed file, checked against the table of keys, with what Accelerate puts
// in the place of "auto".
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tessera/config/accelerate/settings.h"

namespace tessera::config::accelerate {

class DeepspeedValues {
 public:
  /// UserError with file and line: what is no such file, unknown keys, wrong types, "auto" where
  /// nothing fills it in, values that contradict each other or `settings`.
  DeepspeedValues(const std::filesystem::path& file, const Settings& settings);

  /// The settings as written, in the order of the file; origins are "file:line".
  const std::vector<Setting>& all() const { return written_; }
  const Settings& settings() const { return settings_; }
  const std::string& file() const { return file_; }

  /// The setting of a key, "auto" replaced; nullptr: absent, null, or "auto" for the job file to
  /// say.
  const Setting* find(const std::string& key) const;
  std::string text(const std::string& key, const std::string& absent) const;
  bool flag(const std::string& key) const { return text(key, "false") == "true"; }
  std::optional<int64_t> integer(const std::string& key) const;

 private:
  std::string file_;
  const Settings& settings_;
  std::vector<Setting> written_;
  std::map<std::string, Setting> effective_;
};

/// train_batch_size and its factors; each unset where nothing says it.
struct DeepspeedBatch {
  std::optional<int64_t> global, micro, accumulation, processes;
};
DeepspeedBatch batch_of(const DeepspeedValues& values);

}  // namespace tessera::config::accelerate
