#define TESSERA_ISA_NAMESPACE avx2
#include "tessera/kernels/cpu/fp8_impl.h"
