#define TESSERA_ISA_NAMESPACE avx2
#include "tessera/kernels/cpu/quantised_impl.h"
