# Debian's libraries, and LibTorch.
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(yaml-cpp REQUIRED)
find_package(CLI11 REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(GTest REQUIRED)
find_package(benchmark REQUIRED)
find_package(CURL REQUIRED)
include(static_libraries)

set(TESSERA_LIBTORCH "${CMAKE_SOURCE_DIR}/.deps/libtorch-2.11.0" CACHE PATH
    "LibTorch: a folder with include/ and lib/ (a PyTorch wheel's torch/ folder will do)")
include(libtorch)
tessera_libtorch_version(torch_version ${TESSERA_LIBTORCH})
if(torch_version STREQUAL "")
  message(FATAL_ERROR "no LibTorch in ${TESSERA_LIBTORCH}; run ./dev, or set TESSERA_LIBTORCH")
elseif(torch_version VERSION_LESS 2.11)
  message(FATAL_ERROR "LibTorch in ${TESSERA_LIBTORCH}: expected 2.11 or newer; unset TESSERA_LIBTORCH and run ./dev")
endif()
# Half a download, or one without its transport, would be told by the linker, minutes later.
execute_process(COMMAND ${CMAKE_NM} -D --defined-only ${TESSERA_LIBTORCH}/lib/libtorch_cpu.so
                COMMAND grep -c _ZTIN4c10d16ProcessGroupGlooE
                RESULTS_VARIABLE nm_and_grep OUTPUT_QUIET ERROR_QUIET)
if(nm_and_grep MATCHES "^[^0]")
  message(FATAL_ERROR "${TESSERA_LIBTORCH}/lib/libtorch_cpu.so: expected a shared library, got half of one or something else; "
                      "fetch it again, or set TESSERA_LIBTORCH to another LibTorch")
elseif(nm_and_grep MATCHES "[^0]$")
  message(FATAL_ERROR "LibTorch in ${TESSERA_LIBTORCH}: expected one with distributed and Gloo, as PyTorch's wheels are; "
                      "set TESSERA_LIBTORCH to such a one")
endif()
include(cuda)
tessera_import_libtorch(${TESSERA_LIBTORCH} ${TESSERA_WITH_CUDA})
