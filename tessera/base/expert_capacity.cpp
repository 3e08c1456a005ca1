#include "tessera/base/expert_capacity.h"

#include <algorithm>
#include <cmath>

namespace tessera::nn {

int64_t expert_capacity(int64_t seq_len, int64_t num_experts, int64_t top_k, double factor,
                        int64_t least) {
  const auto mean =
      static_cast<float>(static_cast<double>(seq_len) / static_cast<double>(num_experts));
  const float share = std::ceil(mean * static_cast<float>(factor * static_cast<double>(top_k)));
  // A factor may be as large as a double; more than all tokens is no difference.
  const float most = static_cast<float>(seq_len) + 1;
  return std::max(static_cast<int64_t>(std::min(share, most)), least);
}

}  // namespace tessera::nn
