# tessera_isa_sources(OUT PREFIX [AMX | ONLY_AMX]): PREFIX_generic.cpp and, on x86-64, PREFIX_avx2.cpp, PREFIX_avx512.cpp and
# PREFIX_avx512_bf16.cpp (and with AMX as well PREFIX_amx_bf16.cpp; ONLY_AMX: on x86-64 that one alone) appended to the list OUT, each
# compiled for its instruction set, optimised in every build.
# Such a file must not include headers whose inline functions other files share: the linker keeps one copy of each,
# and it might be the one that an older processor cannot run.
function(tessera_isa_sources out prefix)
  set(common -O3 -ffp-contract=fast -fno-math-errno -fno-trapping-math -Wno-psabi
    $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)  # GCC 12 raises it in its own AVX-512 headers (PR 105593)
  set(flags_generic)
  set(flags_avx2 -mavx2 -mfma)
  set(flags_avx512 ${flags_avx2} -mavx512f -mavx512bw -mavx512dq -mavx512vl -mprefer-vector-width=512)
  set(flags_avx512_bf16 ${flags_avx512} -mavx512bf16)
  set(flags_amx_bf16 ${flags_avx512_bf16} -mamx-tile -mamx-bf16 $<$<CXX_COMPILER_ID:GNU>:-Wno-uninitialized>)  # likewise
  set(sets generic avx2 avx512 avx512_bf16)
  if("AMX" IN_LIST ARGN)
    list(APPEND sets amx_bf16)
  elseif("ONLY_AMX" IN_LIST ARGN)
    set(sets amx_bf16)
  endif()
  if(NOT CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$")
    list(FILTER sets INCLUDE REGEX "^generic$")
  endif()
  foreach(set IN LISTS sets)
    set_source_files_properties(${prefix}_${set}.cpp PROPERTIES
      SKIP_PRECOMPILE_HEADERS ON COMPILE_OPTIONS "${common};${flags_${set}}")
    list(APPEND ${out} ${prefix}_${set}.cpp)
  endforeach()
  set(${out} ${${out}} PARENT_SCOPE)
endfunction()
