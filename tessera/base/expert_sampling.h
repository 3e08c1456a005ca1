// Which of a token's experts are drawn instead of taken by their scores.
#pragma once

#include <array>
#include <string_view>

#include "tessera/base/texts.h"

namespace tessera::nn {

/// In training. What is drawn is without replacement, each next expert with the softmax of the logits that are
/// left (Gumbel noise added to these; Kool et al., Stochastic Beams and Where to Find Them, ICML 2019).
enum class ExpertSampling {
  none,
  all,  ///< every expert of a token (DeepSpeed's noisy_gate_policy RSample)
  but_first  ///< those after its best (DeepSpeed's top2_2nd_expert_sampling; Lepikhin et al., GShard, ICLR 2021)
};

}  // namespace tessera::nn

template <>
inline constexpr auto tessera::kTexts<tessera::nn::ExpertSampling> =
    std::to_array<std::string_view>({"none", "all", "but_first"});
