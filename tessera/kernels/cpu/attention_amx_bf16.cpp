#define TESSERA_ISA_NAMESPACE amx_bf16
#include "tessera/kernels/cpu/attention_impl.h"
