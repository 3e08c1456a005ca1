// Stored numbers as float32.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/checkpoint/tensor_source.h"

namespace tessera::checkpoint {

/// Elements begin .. begin + count of a tensor of floats.
std::vector<float> floats_of(const TensorSource& source, const std::string& name, int64_t begin,
                             int64_t count);
std::vector<float> floats_of(const TensorSource& source, const std::string& name);  ///< all of it

}  // namespace tessera::checkpoint
