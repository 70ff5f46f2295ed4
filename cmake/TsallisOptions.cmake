# Compiler settings shared by every target, and the helpers that glob sources and tests.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib)
set(CMAKE_ARCHIVE_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM)
  # Without the sloppiness ccache refuses every file that sees a precompiled header; the base folder lets
  # clones of the repository share results.
  set(CMAKE_CXX_COMPILER_LAUNCHER
      ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
      CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} ${CCACHE_PROGRAM})
endif()

add_library(tsallis_options INTERFACE)
target_compile_options(tsallis_options INTERFACE -Wall -Wextra -Wshadow -Wnon-virtual-dtor -Wno-psabi)
if(TSALLIS_WERROR)
  target_compile_options(tsallis_options INTERFACE -Werror)
endif()
if(TSALLIS_SANITIZE)
  target_compile_options(tsallis_options INTERFACE -fsanitize=${TSALLIS_SANITIZE} -fno-omit-frame-pointer
                                                   -fno-sanitize-recover=undefined)
  target_link_options(tsallis_options INTERFACE -fsanitize=${TSALLIS_SANITIZE})
endif()
if(TSALLIS_FUZZ)
  # With coverage on top of them Clang takes over twenty minutes for a file of kernels instead of two. The tree `dev`
  # has these checks, and AddressSanitizer sees most of what they would.
  target_compile_options(tsallis_options INTERFACE -fno-sanitize=null,alignment,pointer-overflow,object-size)
endif()
if(TSALLIS_ALL_TARGETS)
  # Without this the library keeps only targets at or above its baseline, and lower instruction sets go untested.
  target_compile_definitions(tsallis_options INTERFACE HWY_COMPILE_ALL_ATTAINABLE)
endif()

# tsallis_glob(VAR dir...): every non-test source below the folders; tests are *_test.cc beside them.
function(tsallis_glob out)
  set(found)
  foreach(dir IN LISTS ARGN)
    file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${dir}/*.cc)
    list(APPEND found ${sources})
  endforeach()
  list(FILTER found EXCLUDE REGEX "_test\\.cc$")
  set(${out} ${found} PARENT_SCOPE)
endfunction()

# tsallis_tests(name library dir...): one test program of every *_test.cc below the folders, registered with CTest.
# Globbing means that a test file cannot be left out. Built by the target `tests`, not by default.
function(tsallis_tests name library)
  if(NOT TSALLIS_TESTS)
    return()
  endif()
  set(found)
  foreach(dir IN LISTS ARGN)
    file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${dir}/*_test.cc)
    list(APPEND found ${sources})
  endforeach()
  if(NOT found)
    return()
  endif()
  find_package(GTest REQUIRED)
  add_executable(${name} EXCLUDE_FROM_ALL ${found})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(${name} PRIVATE ${library} tsallis_options GTest::gmock GTest::gtest GTest::gtest_main)
  add_dependencies(tests ${name})
  add_test(NAME ${name} COMMAND ${name})
endfunction()
