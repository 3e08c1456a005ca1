// One collective as a rank called it: what the ranks of a group must agree on.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string>

#include "tessera/comm/counters.h"
#include "tessera/comm/reduce.h"

namespace tessera::comm {

struct Call {
  Operation operation = Operation::barrier;
  int64_t bytes = 0;  ///< of the whole tensor; not compared for objects: there ranks may differ
  at::ScalarType dtype = at::kByte;
  ReduceOp op = ReduceOp::sum;  ///< of all_reduce and reduce_scatter
  int root = 0;                 ///< of broadcast and scatter

  /// Two numbers that differ where the calls do: what ranks send each other.
  struct Code {
    uint64_t kind = 0;
    uint64_t bytes = 0;
    bool operator==(const Code&) const = default;
  };
  Code code() const;
};

/// "all_reduce of 400 B (Float, sum)", "broadcast of 8 B (Long, root 1)", "barrier".
std::string describe(const Call& call);

/// Throws std::runtime_error with one line that names both ranks and both calls if they differ.
void check_same_call(int rank, const Call& call, int peer, const Call::Code& theirs);

}  // namespace tessera::comm
