// What a message offers in the place of a number that does not fit.
#pragma once

#include <vector>

namespace tessera {

/// Those of 1 to `most` that `fits` says yes of, ascending.
template <typename Number>
std::vector<Number> fitting_numbers(Number most, const auto& fits) {
  std::vector<Number> fitting;
  for (Number number = 1; number <= most; ++number) {
    if (fits(number)) fitting.push_back(number);
  }
  return fitting;
}

}  // namespace tessera
