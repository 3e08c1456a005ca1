// The rules by which Accelerate's keys become ours, one source per section.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tessera/config/accelerate/decision.h"

namespace tessera::config::accelerate {

/// What a rule may look at.
struct RuleInput {
  const Settings& settings;
  const Setting& setting;  ///< the one to decide about; never null
  std::string type;        ///< distributed_type
  LaunchPlan launch;

  std::string text(const std::string& key) const { return settings.text(key); }
  bool given(const std::string& key) const { return settings.find(key) != nullptr; }
};

using Decide = Decision (*)(const RuleInput& input);
using Rules = std::map<std::string, Decide>;  ///< by dotted key

const Rules& general_rules();      ///< keys at the top, parallelism_config, fp8, dynamo, mpirun
const Rules& fsdp_rules();         ///< fsdp_config, of distributed_type FSDP
const Rules& deepspeed_rules();    ///< deepspeed_config, of DEEPSPEED
const Rules& megatron_lm_rules();  ///< megatron_lm_config, of MEGATRON_LM

const Rules& fp8_rules();  ///< fp8_config
/// Megatron's --fp8-* in megatron_lm_config.
const Rules& megatron_fp8_rules();
/// What mixed_precision fp8 asks for. `autocast`: weights are cast where they are used.
Decision fp8_precision(const RuleInput& input, bool autocast);

/// The rule of keys that limit the norm of the gradients.
Decision max_grad_norm(const RuleInput& input);

/// Both are right by themselves, but not together.
[[noreturn]] void contradict(const Setting& a, const Setting& b, const std::string& why);

}  // namespace tessera::config::accelerate
