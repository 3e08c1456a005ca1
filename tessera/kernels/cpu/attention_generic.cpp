#define TESSERA_ISA_NAMESPACE generic
#include "tessera/kernels/cpu/attention_impl.h"
