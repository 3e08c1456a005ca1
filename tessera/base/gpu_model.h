// A GPU, as far as decisions depend on its kind.
#pragma once

namespace tessera {

struct GpuModel {
  int major = 0, minor = 0;  ///< compute capability
  int cuda = 0;              ///< LibTorch's: 12090 is 12.9
};

}  // namespace tessera
