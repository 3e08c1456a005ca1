#include "tessera/comm/choose.h"

namespace tessera::comm {
namespace {

bool is_half(at::ScalarType dtype) { return dtype == at::kBFloat16 || dtype == at::kHalf; }

}  // namespace

Algorithm choose(const Choice& choice) {
  if (choice.one_host) return Algorithm::shared_memory;
  switch (choice.operation) {
    case Operation::all_reduce:
      // Gloo adds bf16 and fp16 in their own precision; the exchange adds in fp32 and rounds once.
      if (is_half(choice.dtype)) return Algorithm::exchange;
      return choice.bytes < (int64_t{256} << 10) ? Algorithm::native : Algorithm::exchange;
    case Operation::broadcast:
      return Algorithm::native;
    default:
      return Algorithm::exchange;
  }
}

}  // namespace tessera::comm
