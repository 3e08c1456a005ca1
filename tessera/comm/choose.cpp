#include "tessera/comm/choose.h"

namespace tessera::comm {
namespace {

bool is_half(at::ScalarType dtype) { return dtype == at::kBFloat16 || dtype == at::kHalf; }
bool is_extreme(ReduceOp op) { return op == ReduceOp::max || op == ReduceOp::min; }

}  // namespace

// Note [Measured]. Two ranks on two cores that other programs used as well, fp32, LibTorch 2.11.0;
// medians of 9 (64 MiB), 25 (4 MiB) and 100 (64 KiB) calls in ms, then CPU ms per rank and call:
//                        64 KiB              4 MiB               64 MiB
//   all_reduce      shared 0.05 | 0.05    0.63 | 0.35      21 |  7
//                   native 2.0  | 1.1     4.5  | 2.3       58 | 35
//                 exchange 4.0  | 0.9     7.8  | 3.7       87 | 39
//   reduce_scatter  shared 0.04 | 0.04    0.54 | 0.30      12 |  6
//                   native 3.9  | 1.1     5.4  | 2.9      219 | 68
//                 exchange 2.0  | 0.8     3.6  | 2.4       44 | 24
//   all_gather      shared 0.04 | 0.04    0.33 | 0.20      10 |  5
//                   native 2.0  | 1.4     2.1  | 1.5      104 | 52
//                 exchange 2.0  | 1.4     3.1  | 2.3       45 | 13
//   all_to_all      shared 0.04 | 0.04    0.39 | 0.23      10 |  5
//                   native 0.1  | 0.4     1.8  | 0.9       37 | 15
//                 exchange 3.9  | 0.7     3.7  | 0.9       30 | 15
//   broadcast       shared 0.03 | 0.04    0.26 | 0.17       6 |  3
//                   native 1.9  | 0.1     1.9  | 1.0       24 |  9
// So memory wins at every size. On sockets Gloo's own all-reduce wins at every size, its
// reduce-scatter and all-gather lose badly where time matters; small ones differ by less than the
// noise, so there are no thresholds. The exchange's messages also serve uneven parts.
Algorithm choose(const Choice& choice) {
  if (choice.one_host) return Algorithm::shared_memory;
  switch (choice.operation) {
    case Operation::all_reduce:
      // Gloo adds bf16 and fp16 in their own precision; the exchange adds in fp32 and rounds once.
      if (is_half(choice.dtype)) return Algorithm::exchange;
      // Gloo's maximum and minimum lose a NaN; keeping it there takes three more passes (native.h).
      return is_extreme(choice.op) && at::isFloatingType(choice.dtype) ? Algorithm::exchange
                                                                       : Algorithm::native;
    case Operation::broadcast:
      return Algorithm::native;
    default:
      return Algorithm::exchange;
  }
}

}  // namespace tessera::comm
