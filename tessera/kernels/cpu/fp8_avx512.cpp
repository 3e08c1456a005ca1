#define TESSERA_ISA_NAMESPACE avx512
#include "tessera/kernels/cpu/fp8_impl.h"
