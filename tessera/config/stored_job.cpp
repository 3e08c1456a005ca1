#include "tessera/config/stored_job.h"

#include <yaml-cpp/yaml.h>

namespace tessera::config {

StoredJob read_stored_job(const std::string& yaml) {
  try {
    const auto job = YAML::Load(yaml);
    const auto text = [&](const char* section, const char* key) {
      const auto value = job.IsMap() && job[section].IsMap() ? job[section][key] : YAML::Node();
      return value.IsScalar() ? value.Scalar() : std::string();
    };
    return {.model = text("model", "path"),
            .tokenizer = text("data", "tokenizer"),
            .chat_template = text("data", "chat_template"),
            .expert_format = text("adapter", "expert_format")};
  } catch (const YAML::Exception&) {
    return {};
  }
}

}  // namespace tessera::config
