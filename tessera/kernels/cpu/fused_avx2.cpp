#define TESSERA_ISA_NAMESPACE avx2
#include "tessera/kernels/cpu/fused_impl.h"
