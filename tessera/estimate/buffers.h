// What a rank holds of parameters, gradients and optimizer state: ZeRO's formulas (Rajbhandari et
// al., SC 2020, section 5) on the flat buffers of the engine (docs/data_parallel.md).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/config/run_config.h"
#include "tessera/estimate/rank_part.h"

namespace tessera::estimate {

/// One flat buffer (parallel/data/flat_buffer.h): how much there is, and what of it stays.
struct BufferPlan {
  int64_t elements = 0;
  int64_t num_slices = 1;  ///< ranks that share it
  bool trained = true;
  int64_t whole_bytes = 4, slice_bytes = 4;  ///< of an element: computed in, updated in
  int64_t gradient_bytes = 4;                ///< reduced in
  bool keeps_whole = true, keeps_gradient = true, keeps_copy = false;
  bool slice_in_whole = true;              ///< the slice is part of the whole parameters
  bool gradient_slice_in_gradient = true;  ///< likewise
  bool on_host = false;                    ///< slice, its gradient and state are not on the device
};

/// What is gathered, reduced and freed together.
struct UnitPlan {
  std::string name;
  std::vector<BufferPlan> buffers;
  size_t stage = 0;             ///< of the rank's stages
  PipelinePlan::Layers layers;  ///< transformer blocks in it
  bool predicts = false;        ///< holds the head
  int64_t summed = 0;           ///< elements of whose gradients ranks of tp hold summands
  int64_t table = 0;            ///< elements that another rank of the pipeline has as well
};

/// Bytes of one unit on the device.
struct UnitBytes {
  double parameters = 0;                     ///< slices, and copies of them
  double kept_whole = 0, passing_whole = 0;  ///< parameters beside the slices
  double kept_gradients = 0, passing_gradients = 0;
  double gradient_slice = 0;  ///< where it is not part of the gradient
  double optimizer = 0;
};
UnitBytes bytes_of(const UnitPlan& unit, const config::RunConfig& config);

/// The rank's units, and the ranks that share them. `parallel.units` model is one unit a stage;
/// size and name count as block, of which they hold less. `device_is_host`: offloading moves
/// nothing, as on a CPU.
std::vector<UnitPlan> plan_units(const config::RunConfig& config, const RankPart& part,
                                 bool device_is_host);

/// Bytes on this rank, each at the most.
struct StateBytes {
  double parameters = 0, gathered = 0, gradients = 0, optimizer = 0;
};
StateBytes peak_of_states(const std::vector<UnitBytes>& units,
                          const config::ParallelSection& section);

}  // namespace tessera::estimate
