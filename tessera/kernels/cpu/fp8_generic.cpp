#define TESSERA_ISA_NAMESPACE generic
#include "tessera/kernels/cpu/fp8_impl.h"
