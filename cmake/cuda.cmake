# Whether this build has CUDA and NCCL: TESSERA_WITH_CUDA, TESSERA_CUDA_INCLUDES, TESSERA_CUDART; tessera_cuda_objects.
set(TESSERA_CUDA AUTO CACHE STRING "Build with CUDA and NCCL: AUTO (where all that is needed is there), ON, OFF")
set_property(CACHE TESSERA_CUDA PROPERTY STRINGS AUTO ON OFF)

# Sets TESSERA_CUDA_INCLUDES and cuda_missing, empty if nothing is.
macro(tessera_find_cuda)
  set(cuda_missing "")
  find_program(TESSERA_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH ${TESSERA_CUDA_TOOLKIT} /usr/local/cuda PATH_SUFFIXES bin)
  if(TESSERA_NVCC)
    file(REAL_PATH ${TESSERA_NVCC} cuda_root)  # .../bin/nvcc, or Debian's /usr/bin/nvcc
    cmake_path(GET cuda_root PARENT_PATH cuda_root)
    cmake_path(GET cuda_root PARENT_PATH cuda_root)
  endif()
  find_path(TESSERA_CUDART_INCLUDE cuda_runtime_api.h HINTS ${cuda_root} PATH_SUFFIXES include)
  find_path(TESSERA_NCCL_INCLUDE nccl.h
            HINTS ENV NCCL_HOME ${cuda_root} ${cuda_root}/../nccl ${TESSERA_LIBTORCH}/../nvidia/nccl PATH_SUFFIXES include)
  if(TESSERA_CUDART_INCLUDE)
    file(STRINGS ${TESSERA_CUDART_INCLUDE}/cuda_runtime_api.h cuda_toolkit REGEX "#define CUDART_VERSION +[0-9]+")
    string(REGEX REPLACE "[^0-9]*([0-9]+)[0-9][0-9][0-9]$" "\\1" cuda_toolkit "${cuda_toolkit}")
    find_library(TESSERA_CUDART libcudart.so.${cuda_toolkit} NO_DEFAULT_PATH
                 HINTS ${TESSERA_LIBTORCH} ${TESSERA_LIBTORCH}/../nvidia/cu${cuda_toolkit} ${cuda_root} PATH_SUFFIXES lib lib64)
  endif()
  if(NOT EXISTS ${TESSERA_LIBTORCH}/lib/libtorch_cuda.so)
    set(cuda_missing "libtorch_cuda.so in ${TESSERA_LIBTORCH}/lib")
  elseif(NOT TESSERA_NVCC)
    set(cuda_missing "nvcc (set CUDA_HOME)")
  elseif(NOT TESSERA_CUDART_INCLUDE)
    set(cuda_missing "cuda_runtime_api.h")
  elseif(NOT TESSERA_CUDART)
    set(cuda_missing "libcudart.so.${cuda_toolkit}")
  elseif(NOT TESSERA_NCCL_INCLUDE)
    set(cuda_missing "nccl.h (set NCCL_HOME)")
  else()
    file(STRINGS ${TESSERA_LIBTORCH}/lib/libc10_cuda.so cuda_runtime REGEX "^libcudart\\.so\\.[0-9]+$" LIMIT_COUNT 1)
    string(REGEX REPLACE ".*\\." "" cuda_runtime "${cuda_runtime}")
    if(NOT cuda_toolkit STREQUAL cuda_runtime)
      set(cuda_missing "a CUDA ${cuda_runtime} toolkit, LibTorch's (${TESSERA_NVCC} is of CUDA ${cuda_toolkit})")
    endif()
  endif()
  set(TESSERA_CUDA_INCLUDES ${TESSERA_CUDART_INCLUDE} ${TESSERA_NCCL_INCLUDE})
endmacro()

set(TESSERA_WITH_CUDA OFF)
if(NOT TESSERA_CUDA STREQUAL OFF)
  tessera_find_cuda()
  if(NOT cuda_missing)
    set(TESSERA_WITH_CUDA ON)
    message(STATUS "Tessera: with CUDA ${cuda_toolkit} and NCCL")
  elseif(TESSERA_CUDA STREQUAL AUTO)
    message(STATUS "Tessera: without CUDA (no ${cuda_missing})")
  else()
    message(FATAL_ERROR "TESSERA_CUDA=ON: no ${cuda_missing}; install it, or set TESSERA_CUDA to AUTO or OFF")
  endif()
else()
  message(STATUS "Tessera: without CUDA (TESSERA_CUDA=OFF)")
endif()

# For whom .cu files are compiled: Ampere, Hopper and Blackwell, and what later ones translate when a program starts.
set(TESSERA_CUDA_ARCHITECTURES 80 90 100 CACHE STRING "Compute capabilities of NVIDIA's GPUs to compile for")

# tessera_cuda_objects(OUT a.cu ..): each compiled by nvcc; the objects' paths in OUT. CMake's own support for CUDA insists on
# linking a program with a toolkit's static library, which Python's packages of nvcc lay out differently.
function(tessera_cuda_objects out)
  set(codes)
  foreach(capability IN LISTS TESSERA_CUDA_ARCHITECTURES)
    list(APPEND codes -gencode arch=compute_${capability},code=sm_${capability})
    set(newest ${capability})
  endforeach()
  list(APPEND codes -gencode arch=compute_${newest},code=compute_${newest})
  set(objects)
  foreach(source IN LISTS ARGN)
    cmake_path(ABSOLUTE_PATH source)
    cmake_path(GET source STEM name)
    set(object ${CMAKE_CURRENT_BINARY_DIR}/${name}.cu.o)
    add_custom_command(OUTPUT ${object} DEPENDS ${source} DEPFILE ${object}.d VERBATIM
      COMMENT "Compiling ${name}.cu for ${TESSERA_CUDA_ARCHITECTURES}"
      COMMAND ${CMAKE_CXX_COMPILER_LAUNCHER} ${TESSERA_NVCC} -ccbin ${CMAKE_CXX_COMPILER} -std=c++20 -O3 ${codes}
              -I${CMAKE_SOURCE_DIR} -Xcompiler=-fPIC,-Wall,-Wextra $<$<BOOL:${TESSERA_WERROR}>:-Werror=all-warnings>
              -MD -MF ${object}.d -c ${source} -o ${object} COMMAND_EXPAND_LISTS)
    list(APPEND objects ${object})
  endforeach()
  set(${out} ${objects} PARENT_SCOPE)
endfunction()
