#define TESSERA_ISA_NAMESPACE generic
#include "tessera/kernels/cpu/gemv_impl.h"
