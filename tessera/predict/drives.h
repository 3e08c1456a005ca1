// What a rank moves to and from its drives in one step.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/config/run_config.h"
#include "tessera/plan/run_plan.h"

namespace tessera::predict {

/// Bytes of one rank.
struct DriveTraffic {
  double stored = 0;           ///< that lie there all the time
  double read_for_passes = 0;  ///< slices, for forwards and backwards
  double read_for_update = 0;  ///< states, and what is updated
  double written = 0;          ///< after the update
  double activations = 0;      ///< that lie there between forward and backward, at the most
  double activations_written = 0, activations_read = 0;
  double read() const { return read_for_passes + read_for_update + activations_read; }
  double written_in_all() const { return written + activations_written; }
};

/// What stays in the buffers is not read again: between a forward and its backward the last units, then
/// the first ones.
DriveTraffic drive_traffic(const config::RunConfig& config, const plan::RankPlan& rank);

/// What is moved, in a line or two.
std::vector<std::string> drive_lines(const DriveTraffic& traffic);

}  // namespace tessera::predict
