// An Accelerate configuration of FSDP version 1 as one of version 2.
#pragma once

#include <string>
#include <vector>

#include "tessera/config/accelerate/settings.h"

namespace tessera::config::accelerate {

struct Fsdp2 {
  Settings settings;
  std::vector<std::string> changes;  ///< a line each: "fsdp_version: 2"
};

/// Strategies become fsdp_reshard_after_forward; the hybrid ones, which Accelerate's own conversion
/// loses, also the sizes in parallelism_config: split within a machine, copied between machines.
/// Keys that version 2 lacks are left out. UserError with the origin: no fsdp_config, version 2
/// already, strategies that contradict each other, or a hybrid one without num_machines and
/// num_processes.
Fsdp2 to_fsdp2(const Settings& settings);

}  // namespace tessera::config::accelerate
