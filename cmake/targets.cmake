# One static library per folder, one test program per folder.

# The precompiled header that every target with LibTorch shares.
file(WRITE ${CMAKE_BINARY_DIR}/pch_anchor.cpp.in "// Builds the shared precompiled header.\n")
configure_file(${CMAKE_BINARY_DIR}/pch_anchor.cpp.in ${CMAKE_BINARY_DIR}/pch_anchor.cpp COPYONLY)
add_library(tessera_pch STATIC ${CMAKE_BINARY_DIR}/pch_anchor.cpp)
target_link_libraries(tessera_pch PUBLIC tessera_flags Tessera::libtorch)
target_precompile_headers(tessera_pch PRIVATE ${CMAKE_SOURCE_DIR}/cmake/torch_pch.h)

# Eight sources of a folder at a time. What a source takes to compile with LibTorch is mostly what its headers take, again
# for each: functions of templates that the precompiled header left to be made (GCC makes them at the end of each source).
# So names in a folder's anonymous namespaces are unique. OFF for work on single files.
option(TESSERA_UNITY "Compile several sources of a folder as one" ON)

# tessera_library(NAME [TORCH] SOURCES a.cpp .. [DEPS tessera_base ..]): its name is appended to the global property
# TESSERA_LIBRARIES, and tessera_flags are not what is exported to those who use an installed Tessera.
function(tessera_library name)
  cmake_parse_arguments(ARG "TORCH" "" "SOURCES;DEPS" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  target_link_libraries(${name} PUBLIC $<BUILD_INTERFACE:tessera_flags> ${ARG_DEPS})
  target_compile_features(${name} PUBLIC cxx_std_20)
  set_target_properties(${name} PROPERTIES UNITY_BUILD ${TESSERA_UNITY} UNITY_BUILD_BATCH_SIZE 8)
  set_property(GLOBAL APPEND PROPERTY TESSERA_LIBRARIES ${name})
  if(ARG_TORCH)
    target_link_libraries(${name} PUBLIC Tessera::libtorch)
    target_precompile_headers(${name} REUSE_FROM tessera_pch)
  endif()
endfunction()

# tessera_executable(NAME [TORCH] SOURCES .. [DEPS ..])
function(tessera_executable name)
  cmake_parse_arguments(ARG "TORCH" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  set_target_properties(${name} PROPERTIES UNITY_BUILD ${TESSERA_UNITY} UNITY_BUILD_BATCH_SIZE 8)
  target_link_libraries(${name} PRIVATE tessera_flags ${ARG_DEPS})
  if(ARG_TORCH)
    target_link_libraries(${name} PRIVATE Tessera::libtorch)
    target_precompile_headers(${name} REUSE_FROM tessera_pch)
  endif()
endfunction()

# tessera_test(NAME [TORCH] SOURCES a_test.cpp .. [ARGUMENTS ..] [DEPS ..]): a GoogleTest program that CTest runs.
function(tessera_test name)
  cmake_parse_arguments(ARG "TORCH" "" "SOURCES;ARGUMENTS;DEPS" ${ARGN})
  set(torch)
  if(ARG_TORCH)
    set(torch TORCH)
  endif()
  tessera_executable(${name} ${torch} SOURCES ${ARG_SOURCES} DEPS ${ARG_DEPS} tessera_test_main GTest::gtest GTest::gmock)
  # What a test compiles runs once: a quarter less to compile, with the same precompiled header.
  target_compile_options(${name} PRIVATE $<$<AND:$<CONFIG:Release>,$<CXX_COMPILER_ID:GNU>>:-O1>)
  add_test(NAME ${name} COMMAND ${name} --gtest_brief=1 ${ARG_ARGUMENTS} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
  set_tests_properties(${name} PROPERTIES TIMEOUT 600 ENVIRONMENT "OMP_NUM_THREADS=1")
endfunction()
enable_testing()
