# `cmake --install` gives C++ engines the kernel library alone: find_package(tsallis), tsallis::tsallis.
include(CMakePackageConfigHelpers)
set(config_folder ${CMAKE_INSTALL_LIBDIR}/cmake/tsallis)
install(TARGETS tsallis EXPORT tsallis-targets)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/tsallis DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT tsallis-targets NAMESPACE tsallis:: DESTINATION ${config_folder})
configure_package_config_file(cmake/tsallis-config.cmake.in tsallis-config.cmake INSTALL_DESTINATION
                              ${config_folder})
write_basic_package_version_file(tsallis-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/tsallis-config.cmake ${PROJECT_BINARY_DIR}/tsallis-config-version.cmake
        DESTINATION ${config_folder})

if(TSALLIS_TESTS AND NOT TSALLIS_TORCH)
  add_test(NAME kernels_know_no_torch
           COMMAND ${PROJECT_SOURCE_DIR}/scripts/check_torch_free.sh ${PROJECT_BINARY_DIR})
  # The sanitizers' options are not exported, so a consumer could not link that library.
  if(NOT TSALLIS_SANITIZE)
    add_test(NAME installed_package_is_usable
             COMMAND ${PROJECT_SOURCE_DIR}/scripts/check_install.sh ${PROJECT_BINARY_DIR})
  endif()
endif()
