#define TESSERA_ISA_NAMESPACE avx512
#include "tessera/kernels/cpu/quantised_impl.h"
