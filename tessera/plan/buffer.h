// What is decided about a flat buffer (parallel/data/flat_buffer.h) before it exists: the engine
// makes buffers of it, estimates count their bytes.
#pragma once

#include <cstdint>
#include <vector>

#include "tessera/base/choices.h"
#include "tessera/base/offload.h"

namespace tessera::plan {

/// Where something lives: where the rank computes, on the host of a GPU, on drives.
enum class Tier { device, host, drive };

/// What the decision depends on.
struct BufferOptions {
  parallel::Placement placement = parallel::Placement::full_shard;
  int64_t num_slices = 1;   ///< ranks that share the buffer
  bool of_experts = false;  ///< that are apart (mesh::MeshShape)
  bool trained = true;
  bool offloaded = false;         ///< slices, their gradients and state live on the host
  bool offloads_by_copy = false;  ///< but gathers take a copy of the slice on the device
  /// Where the device is not the host, no more than the optimizer's states.
  parallel::OnDrives on_drives = parallel::OnDrives::nothing;
  bool device_is_host = true;        ///< as on a CPU, where offloading moves nothing
  bool in_backward = false;          ///< updated once reduced: no gradient stays
  bool fp8_weights = false;          ///< whole parameters are kept and gathered in 8 bits
  bool fp8_gradients = false;        ///< reduced gradients are kept in 8 bits
  bool gradients_on_drives = false;  ///< reduced gradients lie there; not of those before
  /// Bytes of an element: computed in, updated in, reduced in.
  int64_t whole_bytes = 4, slice_bytes = 4, gradient_bytes = 4;
  bool slice_has_type_of_whole = true;
  /// Gradients are reduced in a type in which the optimizer may read them.
  bool gradient_has_type_of_sum = true;
};

/// One flat buffer: how much there is, and what of it stays.
struct BufferPlan {
  int64_t elements = 0;
  int64_t in_matrices = 0;  ///< of them, those that the optimizer updates as whole matrices
  int64_t in_blocks = 0;    ///< of them, those of which it keeps states of 8 bits
  int64_t summed = 0;       ///< of them, those of whose gradients ranks of tp hold summands
  int64_t num_slices = 1;
  bool of_experts = false;
  bool trained = true;
  int64_t whole_bytes = 4, slice_bytes = 4, gradient_bytes = 4;
  int64_t gradient_slice_bytes = 4;  ///< of an element of what is kept of a reduced gradient
  int64_t gathered_bytes = 4;        ///< of an element of what gathers send
  bool fp8_gradients = false;
  bool keeps_whole = true;     ///< whole parameters stay in memory all the time
  bool keeps_codes = false;    ///< instead, those in 8 bits do
  bool keeps_gradient = true;  ///< so does the whole gradient
  bool keeps_copy = false;     ///< of the slice, on the device in the type of the whole parameters
  bool slice_in_whole = true;  ///< the slice is part of the whole parameters
  bool gradient_slice_in_gradient = true;  ///< likewise
  Tier slice = Tier::device;               ///< as gathers take it
  Tier gradient = Tier::device;            ///< of the slice
  Tier states = Tier::device;              ///< of the optimizer
  bool master_on_drives = false;           ///< what it updates lies there, and gathers take a copy
  bool gradient_on_drives = false;         ///< that of the slice lies there, once it is reduced
};

/// The plan of a buffer of `elements`. ZeRO's and FSDP's placements (Rajbhandari et al., SC 2020,
/// section 5) are nothing but which parts of a buffer stay.
BufferPlan plan_buffer(int64_t elements, const BufferOptions& options);

/// Which units are offloaded if `fraction` of all elements is: the last ones, whose gradients come
/// first. A unit goes as a whole.
std::vector<bool> offloaded_units(const std::vector<int64_t>& elements, double fraction);

}  // namespace tessera::plan
