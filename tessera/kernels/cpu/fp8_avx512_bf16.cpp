#define TESSERA_ISA_NAMESPACE avx512_bf16
#include "tessera/kernels/cpu/fp8_impl.h"
