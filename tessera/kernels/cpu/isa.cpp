#include "tessera/kernels/cpu/isa.h"

#include <array>
#include <atomic>
#include <cstdlib>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "tessera/base/error.h"

// Note [MKL's instructions]
// LibTorch contains MKL, which asks this function whether the processor is Intel's and else
// multiplies with AVX2 at most: half the speed that an AMD processor with AVX-512 can give in
// float32, a quarter in bfloat16. The executable's definition takes precedence over the library's.
// MKL still asks the processor itself which instructions it has, so the answer is safe on any;
// TESSERA_MKL_VENDOR_CHECK=1 leaves MKL's own choice of a path in place.
extern "C" int mkl_serv_intel_cpu_true() {
  const char* keep = std::getenv("TESSERA_MKL_VENDOR_CHECK");
#if defined(__x86_64__)
  if (keep != nullptr && std::string_view(keep) == "1") return __builtin_cpu_is("intel") ? 1 : 0;
#endif
  return 1;
}

namespace tessera::kernels {
namespace {

constexpr std::array<std::string_view, 5> kNames = {"generic", "avx2", "avx512", "avx512_bf16",
                                                    "amx_bf16"};

#if defined(__x86_64__)
/// Does the processor multiply tiles of bfloat16, and does the kernel give this process the 8 KiB that hold them?
bool may_use_amx_bf16() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
  constexpr unsigned kAmxBf16 = 1u << 22, kAmxTile = 1u << 24;
  if ((d & kAmxBf16) == 0 || (d & kAmxTile) == 0) return false;
  constexpr long kRequest = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return ::syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
}
#endif

std::atomic<Isa>& chosen() {
  static std::atomic<Isa> isa{isa_from_environment()};
  return isa;
}

}  // namespace

std::string_view name_of(Isa isa) { return kNames[static_cast<int>(isa)]; }

Isa detected_isa() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return Isa::generic;
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
      !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl")) {
    return Isa::avx2;
  }
  if (!__builtin_cpu_supports("avx512bf16")) return Isa::avx512;
  static const bool may_use_tiles = may_use_amx_bf16();
  return may_use_tiles ? Isa::amx_bf16 : Isa::avx512_bf16;
#else
  return Isa::generic;
#endif
}

Isa isa_from_environment() {
  const char* wanted = std::getenv("TESSERA_ISA");
  const Isa best = detected_isa();
  if (wanted == nullptr || *wanted == '\0') return best;
  for (int i = 0; i < static_cast<int>(kNames.size()); ++i) {
    if (kNames[i] != wanted) continue;
    if (i > static_cast<int>(best)) {
      user_error("TESSERA_ISA: expected at most {} on this processor, got {}", name_of(best),
                 wanted);
    }
    return static_cast<Isa>(i);
  }
  user_error("TESSERA_ISA: expected generic, avx2, avx512, avx512_bf16 or amx_bf16, got {}",
             wanted);
}

Isa current_isa() { return chosen().load(std::memory_order_relaxed); }

IsaScope::IsaScope(Isa isa) : previous_(current_isa()) {
  if (isa > detected_isa()) {
    user_error("IsaScope: expected at most {} on this processor, got {}", name_of(detected_isa()),
               name_of(isa));
  }
  chosen().store(isa, std::memory_order_relaxed);
}

IsaScope::~IsaScope() { chosen().store(previous_, std::memory_order_relaxed); }

}  // namespace tessera::kernels
