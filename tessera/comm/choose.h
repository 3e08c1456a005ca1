// Every choice of algorithm of `comm/`, with the measurement behind it.
#pragma once

#include <c10/core/ScalarType.h>
#include <c10/util/intrusive_ptr.h>

#include <optional>

#include "tessera/comm/counters.h"
#include "tessera/comm/reduce.h"

namespace c10d {
class Backend;
}

namespace tessera::comm {

enum class Algorithm {
  native,    ///< the backend's own collective
  exchange,  ///< every rank sends each peer its part directly; reductions are local, in the order
             ///< of ranks
  shared_memory  ///< the same through memory that all ranks of one machine map
};

/// What the choice depends on; sizes turned out not to matter.
struct Choice {
  Operation operation = Operation::all_reduce;
  bool one_host = false;  ///< all ranks share memory (shared_memory.h)
  at::ScalarType dtype = at::kFloat;
  ReduceOp op = ReduceOp::sum;  ///< of a reduction
};

/// The fastest that is correct; the source has the measurements.
Algorithm choose(const Choice& choice);

/// Settings for tests and measurements.
struct Transport {
  bool shared_memory = true;  ///< false: ranks of one machine, too, talk through sockets
  std::optional<Algorithm> all_reduce = {};  ///< instead of what choose() says (must be possible)
  /// Takes the place of NCCL for tensors of the group's device, the CPU too: made of a Gloo backend of
  /// its own over the same ranks.
  c10::intrusive_ptr<c10d::Backend> (*device_backend)(
      const c10::intrusive_ptr<c10d::Backend>& gloo) = nullptr;
};

}  // namespace tessera::comm
