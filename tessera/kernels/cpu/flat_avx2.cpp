#define TESSERA_ISA_NAMESPACE avx2
#include "tessera/kernels/cpu/flat_impl.h"
