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
# AUTO: where the compiler is the one that changes are tested with; others may warn of other things.
if(TSALLIS_WERROR STREQUAL "AUTO")
  set(TSALLIS_WERROR OFF)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION MATCHES "^12\\.2\\.")
    set(TSALLIS_WERROR ON)
  endif()
endif()
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

# tsallis_glob(VAR dir...): every non-test source below the folders; tests are *_test.cc beside them, and what they
# share lies in folders testing/.
function(tsallis_glob out)
  set(found)
  foreach(dir IN LISTS ARGN)
    file(GLOB_RECURSE sources RELATIVE ${CMAKE_CURRENT_SOURCE_DIR} CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${dir}/*.cc)
    list(APPEND found ${sources})
  endforeach()
  list(FILTER found EXCLUDE REGEX "_test\\.cc$|/testing/")
  set(${out} ${found} PARENT_SCOPE)
endfunction()

# tsallis_together(target file...): compiles up to eight files of a folder at once, as one. Two thirds of the time of a
# file that includes torch go to what it has in common with others. Unnamed namespaces become one, so a file with a name
# there that another file of its folder has, too, is among those given, which are compiled on their own; so are files
# with definitions of their own. Not CMake's unity build: it names files by absolute paths, and ccache would not know
# the objects of another clone.
function(tsallis_together target)
  if(NOT TSALLIS_TOGETHER)
    return()
  endif()
  get_target_property(sources ${target} SOURCES)
  list(REMOVE_ITEM sources ${ARGN})
  set(groups)
  set(last)
  foreach(source IN LISTS sources)
    get_filename_component(folder ${source} DIRECTORY)
    if(NOT folder STREQUAL last)
      set(last ${folder})
      set(count 0)
    endif()
    math(EXPR number "${count} / 8 + 1")
    math(EXPR count "${count} + 1")
    set(group ${CMAKE_CURRENT_BINARY_DIR}/together/${folder}_${number}.cc)
    list(APPEND groups ${group})
    string(MD5 key ${group})
    string(APPEND content_${key} "#include \"${source}\"\n")
  endforeach()
  list(REMOVE_DUPLICATES groups)
  foreach(group IN LISTS groups)
    string(MD5 key ${group})
    file(CONFIGURE OUTPUT ${group} CONTENT "${content_${key}}" @ONLY)
  endforeach()
  set_property(TARGET ${target} PROPERTY SOURCES ${ARGN} ${groups})
  # It warns of what would be wrong in a header, and takes each file that is not the joined one for a header.
  target_compile_options(${target} PRIVATE -Wno-subobject-linkage)
endfunction()

# tsallis_tests(name library dir...): one test program of every *_test.cc below the folders, registered with CTest in
# shards, which run beside each other. Globbing means that a test file cannot be left out. Built by the target `tests`,
# not by default.
function(tsallis_tests name library)
  if(NOT TSALLIS_TESTS)
    return()
  endif()
  set(found)
  foreach(dir IN LISTS ARGN)
    file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${dir}/*_test.cc)
    list(APPEND found ${sources})
  endforeach()
  if(NOT TSALLIS_EMULATED_CUDA)
    list(FILTER found EXCLUDE REGEX "/cuda/")
  endif()
  if(NOT found)
    return()
  endif()
  find_package(GTest REQUIRED)
  add_executable(${name} EXCLUDE_FROM_ALL ${found})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(${name} PRIVATE ${library} tsallis_options GTest::gmock GTest::gtest GTest::gtest_main)
  add_dependencies(tests ${name})
  foreach(shard RANGE 1 ${TSALLIS_TEST_SHARDS})
    math(EXPR index "${shard} - 1")
    add_test(NAME ${name}_${shard} COMMAND ${name})
    # The report: for scripts/run_tests.py.
    set_property(TEST ${name}_${shard} PROPERTY ENVIRONMENT
      GTEST_TOTAL_SHARDS=${TSALLIS_TEST_SHARDS} GTEST_SHARD_INDEX=${index}
      GTEST_OUTPUT=xml:${CMAKE_BINARY_DIR}/test-reports/gtest/${name}_${shard}.xml)
    set_property(GLOBAL APPEND PROPERTY TSALLIS_TESTS_OF_${name} ${name}_${shard})
  endforeach()
endfunction()
