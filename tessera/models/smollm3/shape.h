// What only SmolLM3 says of its shape.
#pragma once

#include <vector>

namespace tessera::models::smollm3 {

struct Facts {
  std::vector<bool> rotates;  ///< does a layer have rotary positions, for each, or more

  bool operator==(const Facts&) const = default;
};

}  // namespace tessera::models::smollm3
