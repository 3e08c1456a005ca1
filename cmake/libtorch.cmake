# LibTorch from a folder with include/ and lib/. Both the build and the installed package (TesseraConfig.cmake) include this.

# Sets `out` to the version in `folder`, as 2.11; 0: of an unknown age; empty: no LibTorch is there.
function(tessera_libtorch_version out folder)
  set(version "")
  if(EXISTS ${folder}/lib/libtorch_cpu.so AND EXISTS ${folder}/include/ATen)
    set(version 0)
    set(header ${folder}/include/torch/headeronly/version.h)
    if(EXISTS ${header})
      file(READ ${header} version)
      string(REGEX REPLACE ".*VERSION_MAJOR ([0-9]+).*VERSION_MINOR ([0-9]+).*" "\\1.\\2" version "${version}")
    endif()
  endif()
  set(${out} "${version}" PARENT_SCOPE)
endfunction()

# The target Tessera::libtorch; the libraries of CUDA, too, if `with_cuda`.
# find_package(Torch) on a wheel demands a CUDA toolkit; these few lines do not.
function(tessera_import_libtorch folder with_cuda)
  if(TARGET Tessera::libtorch)
    return()
  endif()
  add_library(Tessera::libtorch INTERFACE IMPORTED)
  # -idirafter: LibTorch ships its own copy of fmt, which must not hide Debian's.
  target_compile_options(Tessera::libtorch INTERFACE
    "SHELL:-idirafter \"${folder}/include\""
    "SHELL:-idirafter \"${folder}/include/torch/csrc/api/include\"")
  target_compile_definitions(Tessera::libtorch INTERFACE USE_DISTRIBUTED USE_C10D_GLOO)
  # A RUNPATH is not inherited by libtorch's own dependencies (cudart, cupti), an RPATH is. CMake adds that of `folder`.
  target_link_options(Tessera::libtorch INTERFACE -Wl,--disable-new-dtags
                      -Wl,--no-as-needed -L${folder}/lib -Wl,--allow-shlib-undefined)
  target_link_libraries(Tessera::libtorch INTERFACE
    ${folder}/lib/libtorch_cpu.so ${folder}/lib/libc10.so Threads::Threads fmt::fmt)
  if(with_cuda)
    target_link_libraries(Tessera::libtorch INTERFACE ${folder}/lib/libtorch_cuda.so ${folder}/lib/libc10_cuda.so)
  endif()
endfunction()
