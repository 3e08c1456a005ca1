// Do ranges hold each element of their tensor once?
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "tessera/checkpoint/index.h"

namespace tessera::checkpoint {

/// What is wrong with `ranges` (of numbers >= 0, in any order) of a tensor of `num_elements`: text
/// that goes on after "got", such as "no element 4"; "" if they tile the tensor. Besides holes and
/// overlaps: a stripe that is none of this tensor, elements that its stripe does not have, stripes
/// of several strides. Cost: n log n for n ranges, however many runs their stripes have.
std::string untiled(int64_t num_elements, std::span<const StoredExtent> ranges);

}  // namespace tessera::checkpoint
