# What stands below a prefix: programs, a static library per folder and its headers, the CMake package Tessera, LibTorch.
# `cmake --install`, `make install` and CPack put it there. Nothing in it names a folder outside: it may be moved.
# The component `programs` is what trains; with the component `finds_libtorch` it uses the user's PyTorch.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

# The libraries of CUDA are gigabytes, some loaded by name only: a build with CUDA stays with the LibTorch it has.
set(TESSERA_BUNDLE_LIBTORCH AUTO CACHE STRING
    "Install LibTorch, too (500 MB): AUTO (without CUDA), ON, OFF (what is installed uses TESSERA_LIBTORCH)")
set_property(CACHE TESSERA_BUNDLE_LIBTORCH PROPERTY STRINGS AUTO ON OFF)
if(TESSERA_BUNDLE_LIBTORCH STREQUAL ON AND TESSERA_WITH_CUDA)
  message(FATAL_ERROR "TESSERA_BUNDLE_LIBTORCH=ON: expected AUTO or OFF in a build with CUDA (TESSERA_CUDA)")
endif()
file(RELATIVE_PATH to_libraries ${CMAKE_INSTALL_FULL_BINDIR} ${CMAKE_INSTALL_FULL_LIBDIR}/tessera)
set(program_rpath "$ORIGIN/${to_libraries}")
if(TESSERA_BUNDLE_LIBTORCH STREQUAL OFF OR TESSERA_WITH_CUDA)
  set(installed_libtorch ${TESSERA_LIBTORCH})
  set(worker_rpath ${TESSERA_LIBTORCH}/lib)
else()
  set(installed_libtorch ${CMAKE_INSTALL_LIBDIR}/tessera/libtorch)
  set(worker_rpath ${program_rpath}/libtorch/lib)

  # Of what tessera-worker loads, that which stands with LibTorch: in a wheel, CUDA's libraries are beside its folder.
  file(REAL_PATH ${TESSERA_LIBTORCH}/.. beside_libtorch)
  string(REGEX REPLACE "([][+.*()^$?|\\])" "\\\\\\1" beside_libtorch "${beside_libtorch}")
  install(RUNTIME_DEPENDENCY_SET tessera_loads DESTINATION ${installed_libtorch}/lib
          PRE_EXCLUDE_REGEXES "^lib(fmt|yaml-cpp|curl)\\."
          POST_INCLUDE_REGEXES "^${beside_libtorch}/" POST_EXCLUDE_REGEXES ".")
  install(DIRECTORY ${TESSERA_LIBTORCH}/include DESTINATION ${installed_libtorch})
endif()
set(TESSERA_INSTALLED_LIBTORCH ${installed_libtorch} CACHE INTERNAL
    "where installed programs find LibTorch; relative: below the prefix")
set_target_properties(tessera PROPERTIES INSTALL_RPATH "${program_rpath}")
set_target_properties(tessera-worker PROPERTIES INSTALL_RPATH "${program_rpath};${worker_rpath}")
target_link_options(tessera PRIVATE -Wl,--disable-new-dtags)  # as tessera-worker: these before the system's
install(TARGETS tessera tessera-worker RUNTIME_DEPENDENCY_SET tessera_loads
        DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT programs)
# Distributions have them under changing names; two small ones.
install(RUNTIME_DEPENDENCY_SET tessera_loads DESTINATION ${CMAKE_INSTALL_LIBDIR}/tessera COMPONENT programs
        PRE_INCLUDE_REGEXES "^lib(fmt|yaml-cpp)\\." PRE_EXCLUDE_REGEXES ".")
file(WRITE ${CMAKE_BINARY_DIR}/needs_libtorch "${torch_version}\n")
install(FILES ${CMAKE_BINARY_DIR}/needs_libtorch DESTINATION ${CMAKE_INSTALL_LIBDIR}/tessera
        COMPONENT finds_libtorch EXCLUDE_FROM_ALL)

# Completions and manual pages, made by the program itself, where the shells and man look. Below /usr Debian's zsh has a folder of its own.
install(CODE "
  set(share \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_DATAROOTDIR}\")
  set(zsh zsh/site-functions)
  if(CMAKE_INSTALL_PREFIX MATCHES \"/usr\$\" AND EXISTS /etc/debian_version)
    set(zsh zsh/vendor-completions)
  endif()
  foreach(shell_and_file IN ITEMS bash:bash-completion/completions/tessera zsh:\${zsh}/_tessera)
    string(REGEX MATCH \"^([a-z]+):(.*/)(.*)\" _ \${shell_and_file})
    message(STATUS \"Installing: \${share}/\${CMAKE_MATCH_2}\${CMAKE_MATCH_3}\")
    file(MAKE_DIRECTORY \"\${share}/\${CMAKE_MATCH_2}\")
    execute_process(COMMAND \"$<TARGET_FILE:tessera>\" completion \${CMAKE_MATCH_1}
                    OUTPUT_FILE \"\${share}/\${CMAKE_MATCH_2}\${CMAKE_MATCH_3}\" COMMAND_ERROR_IS_FATAL ANY)
  endforeach()
  message(STATUS \"Installing: \${share}/man/man1/tessera*.1\")
  execute_process(COMMAND \"$<TARGET_FILE:tessera>\" man \"\${share}/man/man1\"
                  OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)" COMPONENT programs)

configure_file(cmake/version.h.in ${CMAKE_BINARY_DIR}/include/tessera/version.h @ONLY)

# Included after the folders of tessera/, before those of tests: these are the libraries of the former.
get_property(libraries GLOBAL PROPERTY TESSERA_LIBRARIES)
foreach(library IN LISTS libraries)
  string(REGEX REPLACE "^tessera_" "" folder ${library})
  set_target_properties(${library} PROPERTIES EXPORT_NAME ${folder})
endforeach()
# What is installed, and nothing that only tests need.
set(CMAKE_SKIP_INSTALL_ALL_DEPENDENCY ON)
add_custom_target(tessera_product DEPENDS tessera tessera-worker ${libraries})
add_library(tessera_all INTERFACE)
set_target_properties(tessera_all PROPERTIES EXPORT_NAME tessera)
target_link_libraries(tessera_all INTERFACE ${libraries})
install(TARGETS tessera_all ${libraries} EXPORT TesseraTargets
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(DIRECTORY tessera DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h" PATTERN "*.def"
        PATTERN "testing*.h" EXCLUDE PATTERN cli EXCLUDE PATTERN gloo_shim EXCLUDE PATTERN cpu EXCLUDE)
install(FILES ${CMAKE_BINARY_DIR}/include/tessera/version.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/tessera)

set(package ${CMAKE_INSTALL_LIBDIR}/cmake/Tessera)
configure_package_config_file(cmake/TesseraConfig.cmake.in ${CMAKE_BINARY_DIR}/TesseraConfig.cmake
                              INSTALL_DESTINATION ${package} PATH_VARS TESSERA_INSTALLED_LIBTORCH)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/TesseraConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(EXPORT TesseraTargets NAMESPACE Tessera:: DESTINATION ${package})
install(FILES ${CMAKE_BINARY_DIR}/TesseraConfig.cmake ${CMAKE_BINARY_DIR}/TesseraConfigVersion.cmake cmake/libtorch.cmake
              cmake/static_libraries.cmake
        DESTINATION ${package})
# Programs to copy from, for whoever has the headers; their CMakeLists.txt but out_of_tree's are of a checkout.
install(DIRECTORY examples DESTINATION ${CMAKE_INSTALL_DOCDIR}
        REGEX "examples/(accelerate/(by_feature/)?)?CMakeLists\\.txt$" EXCLUDE PATTERN "*_test.cpp" EXCLUDE PATTERN "*.sh" EXCLUDE)
install(DIRECTORY recipes DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT programs)
install(FILES LICENSE CHANGELOG.md README.md DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT programs)
install(DIRECTORY docs DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT programs)

# `./dev package`, or cpack in the build folder.
set(CPACK_GENERATOR DEB TGZ)
set(CPACK_PACKAGE_VENDOR "The Tessera authors")
set(CPACK_PACKAGE_CONTACT "The Tessera authors")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "Scales model training from one device to many, without Python")
set(CPACK_PACKAGE_FILE_NAME tessera-${PROJECT_VERSION}-linux-${CMAKE_SYSTEM_PROCESSOR})
set(CPACK_VERBATIM_VARIABLES ON)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_COMPRESSION_TYPE zstd)  # gzip takes several times as long over LibTorch, xz minutes
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${TESSERA_LIBTORCH}/lib)
set(CPACK_DEBIAN_PACKAGE_SUGGESTS
    "g++, make, cmake, libfmt-dev, libyaml-cpp-dev, nlohmann-json3-dev, libssl-dev, libpcre2-dev, libutf8proc-dev, zlib1g-dev, libzstd-dev, libsnappy-dev, liburing-dev")  # to build programs with it
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS libcurl4)  # to fetch models
include(CPack)
