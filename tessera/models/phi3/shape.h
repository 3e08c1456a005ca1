// What only Phi-3 says of its shape.
#pragma once

namespace tessera::models::phi3 {

struct Facts {
  double partial_rotary_factor = 1;  ///< of a head's columns, the first, that are rotated

  bool operator==(const Facts&) const = default;
};

}  // namespace tessera::models::phi3
