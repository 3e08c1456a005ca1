// What is known of a run from the job file in its checkpoints, whatever version wrote it.
#pragma once

#include <string>

namespace tessera::config {

/// Paths as the job had them; "" where it said nothing.
struct StoredJob {
  std::string model;          ///< model.path
  std::string tokenizer;      ///< data.tokenizer
  std::string chat_template;  ///< data.chat_template
  std::string expert_format;  ///< adapter.expert_format
};

/// What a resolved job file (to_yaml) says. What is not there, or is no YAML, is "".
StoredJob read_stored_job(const std::string& yaml);

}  // namespace tessera::config
