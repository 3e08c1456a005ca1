// Errors about keys, and the checks that have a file of their own.
#pragma once

#include <fmt/format.h>

#include <string>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/config/run_config.h"

namespace tessera::config {

/// Raises errors about a key with the place where its value was written.
class Place {
 public:
  explicit Place(const Origins& origins) : origins_(origins) {}

  template <typename... Args>
  [[noreturn]] void error(const std::string& key, fmt::format_string<Args...> format,
                          Args&&... args) const {
    throw UserError(prefix(key) + ": " + fmt::format(format, std::forward<Args>(args)...));
  }

 private:
  std::string prefix(const std::string& key) const {
    const auto found = origins_.find(key);
    if (found == origins_.end() || found->second == "default") return key;
    return found->second == kCommandLine ? "--" + key : found->second + ": " + key;
  }

  const Origins& origins_;
};

/// In which types a run computes and what it keeps in 16 bits.
void check_precision(const RunConfig& config, const Place& place);
/// States that stand in a file or a preset, beside an optimizer of the command line that has none such.
void check_optimizer_states(const RunConfig& config, const Place& place);
/// What 8 bits of weights and gradients do not go with.
void check_fp8_storage(const RunConfig& config, const Place& place);
/// What a mixture of experts is asked for; of a preset, whether it has some.
void check_moe(const RunConfig& config, const Place& place);

}  // namespace tessera::config
