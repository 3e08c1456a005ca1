#define TESSERA_ISA_NAMESPACE avx2
#include "tessera/kernels/cpu/gemv_impl.h"
