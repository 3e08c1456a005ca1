# Debian's libraries, and LibTorch as one imported target (`torch`) made from a folder.
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(yaml-cpp REQUIRED)
find_package(CLI11 REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(GTest REQUIRED)
find_package(benchmark REQUIRED)
find_package(CURL REQUIRED)

set(TESSERA_LIBTORCH "${CMAKE_SOURCE_DIR}/.deps/libtorch-2.11.0" CACHE PATH
    "LibTorch: a folder with include/ and lib/ (a PyTorch wheel's torch/ folder will do)")
if(NOT EXISTS ${TESSERA_LIBTORCH}/lib/libtorch_cpu.so)
  message(FATAL_ERROR "no LibTorch in ${TESSERA_LIBTORCH}; run ./dev, or set TESSERA_LIBTORCH")
endif()
set(torch_version 0)
if(EXISTS ${TESSERA_LIBTORCH}/include/torch/headeronly/version.h)
  file(READ ${TESSERA_LIBTORCH}/include/torch/headeronly/version.h torch_version)
  string(REGEX REPLACE ".*VERSION_MAJOR ([0-9]+).*VERSION_MINOR ([0-9]+).*" "\\1.\\2" torch_version "${torch_version}")
endif()
if(torch_version VERSION_LESS 2.11)
  message(FATAL_ERROR "LibTorch in ${TESSERA_LIBTORCH}: expected 2.11 or newer; unset TESSERA_LIBTORCH and run ./dev")
endif()

# find_package(Torch) on a wheel demands a CUDA toolkit; these few lines do not.
# -idirafter: LibTorch ships its own copy of fmt, which must not hide Debian's.
add_library(torch INTERFACE IMPORTED)
target_compile_options(torch INTERFACE
  "SHELL:-idirafter ${TESSERA_LIBTORCH}/include"
  "SHELL:-idirafter ${TESSERA_LIBTORCH}/include/torch/csrc/api/include")
target_compile_definitions(torch INTERFACE USE_DISTRIBUTED USE_C10D_GLOO)
# A RUNPATH is not inherited by libtorch's own dependencies (cudart, cupti), an RPATH is.
target_link_options(torch INTERFACE -Wl,--disable-new-dtags -Wl,-rpath,${TESSERA_LIBTORCH}/lib
                    -Wl,--no-as-needed -L${TESSERA_LIBTORCH}/lib -Wl,--allow-shlib-undefined)
target_link_libraries(torch INTERFACE
  ${TESSERA_LIBTORCH}/lib/libtorch_cpu.so ${TESSERA_LIBTORCH}/lib/libc10.so Threads::Threads fmt::fmt)

include(cuda)
if(TESSERA_WITH_CUDA)
  target_link_libraries(torch INTERFACE ${TESSERA_LIBTORCH}/lib/libtorch_cuda.so ${TESSERA_LIBTORCH}/lib/libc10_cuda.so)
endif()
