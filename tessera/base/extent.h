// Some elements of a tensor.
#pragma once

#include <cstdint>

#include "tessera/base/stripe.h"

namespace tessera {

/// Elements [begin, begin + length) of those that a stripe takes of a tensor, row-major. What is
/// held, stored, read or sent of a tensor is one of these, and where it is.
struct Extent {
  int64_t begin = 0, length = 0;
  Stripe stripe;

  int64_t first() const { return stripe.position(begin); }  ///< element of the whole tensor

  bool operator==(const Extent&) const = default;
};

}  // namespace tessera
