// What only Gemma says of its shape.
#pragma once

namespace tessera::models::gemma {

struct Facts {
  double query_scalar = 256;  ///< scores are divided by its square root
  /// Gemma 3: theta of layers with a window, which are never stretched; 0: as the others.
  double local_theta = 0;
  double attention_softcap = 0, logits_softcap = 0;  ///< Gemma 2; 0: none

  bool operator==(const Facts&) const = default;
};

}  // namespace tessera::models::gemma
