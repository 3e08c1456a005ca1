#define TESSERA_ISA_NAMESPACE generic
#include "tessera/kernels/cpu/quantised_impl.h"
