#define TESSERA_ISA_NAMESPACE generic
#include "tessera/kernels/cpu/fused_impl.h"
