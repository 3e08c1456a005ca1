#define TESSERA_ISA_NAMESPACE generic
#include "tessera/kernels/cpu/flat_impl.h"
