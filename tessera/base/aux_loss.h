// How routers of a mixture are asked to use their experts alike.
#pragma once

#include <array>
#include <string_view>

#include "tessera/base/texts.h"

namespace tessera::train {

/// The loss that asks routers to use their E experts alike: E sum_i f_i P_i of a layer, f_i the share of
/// choices that fell on expert i, P_i the mean of its probability (Fedus et al., Switch Transformers,
/// JMLR 2022, section 2.2).
enum class AuxLoss {
  none,
  sequence,     ///< within each row, the mean over rows (DeepSeek-V3; Megatron's seq_aux_loss)
  batch,        ///< over the global batch (Megatron's global_aux_loss)
  transformers  ///< the same over all layers together, f_i being of a token's K choices
};

/// Is it made of counts of the global batch, which a step must know before its first backward?
constexpr bool is_of_counts(AuxLoss loss) {
  return loss == AuxLoss::batch || loss == AuxLoss::transformers;
}

}  // namespace tessera::train

template <>
inline constexpr auto tessera::kTexts<tessera::train::AuxLoss> =
    std::to_array<std::string_view>({"none", "sequence", "batch", "transformers"});
