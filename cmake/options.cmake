# Language, warnings and build-wide switches.
set(oldest_GNU 12)
set(oldest_Clang 14)
if(DEFINED oldest_${CMAKE_CXX_COMPILER_ID} AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS oldest_${CMAKE_CXX_COMPILER_ID})
  message(FATAL_ERROR "${CMAKE_CXX_COMPILER}: expected g++ ${oldest_GNU}, clang ${oldest_Clang} or newer, got ${CMAKE_CXX_COMPILER_ID} "
                      "${CMAKE_CXX_COMPILER_VERSION}; install one, name it (CXX=g++-${oldest_GNU}) and remove build/")
endif()
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
set(CMAKE_PCH_INSTANTIATE_TEMPLATES OFF)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()

set(TESSERA_SANITIZER "" CACHE STRING "address, undefined or thread")
option(TESSERA_WERROR "Warnings are errors, as in CI" OFF)
option(TESSERA_FUZZ "build fuzz/ and nothing else; needs clang" OFF)

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM)  # paths below the checkout are told relative to it, so that its clones share what was compiled
  set(CMAKE_CXX_COMPILER_LAUNCHER
      ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
      CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=1 ${CCACHE_PROGRAM})
endif()

add_library(tessera_flags INTERFACE)
target_compile_options(tessera_flags INTERFACE
  -Wall -Wextra -Wpedantic $<$<BOOL:${TESSERA_WERROR}>:-Werror> -Wno-missing-field-initializers)
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  # GCC 12 takes assignments of literals to strings for overlapping copies (PR 105651), GCC 13 and newer LibTorch's vectors of
  # tensors for arrays that are too short.
  target_compile_options(tessera_flags INTERFACE -fpch-preprocess -Wno-restrict
    $<$<VERSION_GREATER_EQUAL:$<CXX_COMPILER_VERSION>,13>:-Wno-array-bounds>)
elseif(CMAKE_CXX_COMPILER_ID STREQUAL Clang)
  # Newer clangs blame us for what libstdc++ 12's own stable_sort uses (clang issue 76515).
  target_compile_options(tessera_flags INTERFACE -Wno-deprecated-declarations)
endif()
target_include_directories(tessera_flags INTERFACE ${CMAKE_SOURCE_DIR})
if(TESSERA_SANITIZER)
  add_compile_options(-fsanitize=${TESSERA_SANITIZER} -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${TESSERA_SANITIZER})
endif()
