// Configurations of Accelerate's, changed at random.
#pragma once

#include <random>
#include <string>

namespace tessera::combinations {

/// The text of one of the files in tests/fixtures/accelerate_configs, or of one that names a
/// DeepSpeed section, with a few keys set to other values that they may have.
std::string draw_accelerate_file(std::mt19937_64& random);

}  // namespace tessera::combinations
