#include "tessera/config/job_keys.h"

#include <map>

#include "tessera/base/option_words.h"
#include "tessera/config/fields.h"

namespace tessera::config {
namespace {

/// Dotted keys by their last part; "" where several sections have it.
std::map<std::string, std::string> keys_by_name() {
  std::map<std::string, std::string> keys;
  for (const auto& section : sections()) {
    for (const auto& field : section.fields) {
      const auto [found, is_new] = keys.try_emplace(field.name(), field.key);
      if (!is_new) found->second.clear();
    }
  }
  return keys;
}

}  // namespace

std::string with_job_keys(const std::string& message) {
  static const auto keys = keys_by_name();
  return with_options_renamed(message, [](const std::string& word) {
    const auto key = keys.find(word);
    return key == keys.end() ? "" : key->second;
  });
}

}  // namespace tessera::config
