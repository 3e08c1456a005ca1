// The instruction set that the CPU kernels run with, chosen once at run time.
//
// Every kernel is one implementation in GCC vector types (cpu/*_impl.h), compiled once for each
// instruction set by a small file (cpu/*_generic.cpp, .. ) into a namespace of that name, and
// reached through a table of function pointers.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string_view>

namespace tessera::kernels {

/// From least to most able; each contains the ones before it.
enum class Isa { generic, avx2, avx512, avx512_bf16, amx_bf16 };

/// "generic", "avx2", "avx512", "avx512_bf16", "amx_bf16".
std::string_view name_of(Isa isa);

/// The best instruction set of this processor (and of this build: `generic` on anything but
/// x86-64) that the kernel lets this process use.
Isa detected_isa();

/// The set in use: `detected_isa()`, or a lower one named by the environment variable TESSERA_ISA.
/// Throws UserError if TESSERA_ISA names no set, or one above this processor's.
Isa current_isa();

/// What the environment asks for now; `current_isa()` asks once.
Isa isa_from_environment();

/// Lets kernels use `isa` (at most `detected_isa()`) until the scope ends, for tests. Not to be
/// nested in running kernels.
class IsaScope {
 public:
  explicit IsaScope(Isa isa);
  ~IsaScope();
  IsaScope(const IsaScope&) = delete;
  IsaScope& operator=(const IsaScope&) = delete;

 private:
  Isa previous_;
};

/// The table of the instruction set in use. `tables` has one for each, `generic` first, in the
/// order of `Isa`; all may be the same. The last stands for the sets after it, too.
template <typename Table, size_t N>
const Table& table_in_use(const Table* const (&tables)[N]) {
  return *tables[std::min(N - 1, static_cast<size_t>(current_isa()))];
}

}  // namespace tessera::kernels
