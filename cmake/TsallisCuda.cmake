# TSALLIS_HAS_CUDA: whether the kernels for NVIDIA's GPUs are compiled. The runtime is linked statically: the library
# needs no file of CUDA's to load, and no driver where no GPU is used.
set(TSALLIS_HAS_CUDA OFF)
if(NOT TSALLIS_CUDA MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "TSALLIS_CUDA is AUTO, ON or OFF, not ${TSALLIS_CUDA}")
endif()
# Why there are none; `tsallis info` says it, and the error of a call that wants them.
set(TSALLIS_WHY_NO_CUDA)
if(TSALLIS_CUDA STREQUAL "OFF")
  set(TSALLIS_WHY_NO_CUDA "TSALLIS_CUDA was OFF")
elseif(TSALLIS_SANITIZE)
  # The sanitizers' trees test the same kernels on the emulation.
  set(TSALLIS_WHY_NO_CUDA "sanitizers do not go with nvcc")
endif()

# Asked before CMake is: enabling a language that is not there ends the configuration.
if(NOT TSALLIS_WHY_NO_CUDA)
  find_program(TSALLIS_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATH_SUFFIXES bin PATHS /usr/local/cuda)
  set(found)
  if(TSALLIS_NVCC)
    execute_process(COMMAND ${TSALLIS_NVCC} --version OUTPUT_VARIABLE found ERROR_QUIET)
    string(REGEX MATCH "release ([0-9]+\\.[0-9]+)" found "${found}")
    set(found ${CMAKE_MATCH_1})
  endif()
  # 12.8 is the first that knows sm_100 and sm_120.
  if(NOT found)
    set(TSALLIS_WHY_NO_CUDA "no nvcc was found")
  elseif(found VERSION_LESS 12.8)
    set(TSALLIS_WHY_NO_CUDA "nvcc ${found} is older than 12.8")
  endif()
endif()
if(NOT TSALLIS_WHY_NO_CUDA AND TSALLIS_TORCH)
  include(TsallisTorchFolder)
  if(TSALLIS_CUDA STREQUAL "AUTO" AND NOT EXISTS ${TSALLIS_TORCH_ROOT}/lib/libtorch_cuda.so)
    # Minutes of compiling for tensors that cannot exist.
    set(TSALLIS_WHY_NO_CUDA "this torch is a build for CPUs")
  endif()
endif()
if(TSALLIS_WHY_NO_CUDA)
  if(TSALLIS_CUDA STREQUAL "ON")
    message(FATAL_ERROR "TSALLIS_CUDA=ON, but ${TSALLIS_WHY_NO_CUDA}")
  endif()
  message(STATUS "Without CUDA kernels: ${TSALLIS_WHY_NO_CUDA}")
  return()
endif()

find_package(CUDAToolkit REQUIRED)
message(STATUS "CUDA kernels: nvcc ${found}, for ${TSALLIS_CUDA_ARCHITECTURES}")
set(TSALLIS_HAS_CUDA ON)
set(TSALLIS_NVCC_VERSION ${found})
# Newer GPUs than these compile the code of the oldest one themselves. That of an architecture with a letter (90a) runs
# on no other.
set(TSALLIS_CUDA_INTERMEDIATE ${TSALLIS_CUDA_ARCHITECTURES})
list(FILTER TSALLIS_CUDA_INTERMEDIATE INCLUDE REGEX "^[0-9]+$")
list(SORT TSALLIS_CUDA_INTERMEDIATE COMPARE NATURAL)
list(SUBLIST TSALLIS_CUDA_INTERMEDIATE 0 1 TSALLIS_CUDA_INTERMEDIATE)
# What sources are told of it.
list(JOIN TSALLIS_CUDA_ARCHITECTURES "," architectures)
set(TSALLIS_CUDA_DEFINITIONS TSALLIS_HAS_CUDA "TSALLIS_CUDA_ARCHITECTURES=\"${architectures}\""
    "TSALLIS_CUDA_INTERMEDIATE=\"${TSALLIS_CUDA_INTERMEDIATE}\"" "TSALLIS_NVCC_VERSION=\"${TSALLIS_NVCC_VERSION}\"")

# tsallis_cuda_sources(target file...): compiles them into the target; a file of several targets is compiled once.
# Rules of our own and not CMake's language: CMake 3.25 does not know that nvcc speaks C++20. What ptxas says of
# registers and spills stays beside the objects, in NAME.ptxas, for the test that compares it with
# src/core/cuda/limits.json.
function(tsallis_cuda_sources target)
  # A multiplication and an addition become one where the source says so and nowhere else, as in the emulation: a
  # score has the same bits in every kernel.
  set(flags -std=c++20 -O3 --expt-relaxed-constexpr -fmad=false -Xptxas -v -Xcompiler=-fPIC --threads=2)
  foreach(architecture IN LISTS TSALLIS_CUDA_ARCHITECTURES)
    list(APPEND flags -gencode=arch=compute_${architecture},code=sm_${architecture})
  endforeach()
  if(TSALLIS_CUDA_INTERMEDIATE)
    list(APPEND flags -gencode=arch=compute_${TSALLIS_CUDA_INTERMEDIATE},code=compute_${TSALLIS_CUDA_INTERMEDIATE})
  endif()
  set(launcher)
  if(CCACHE_PROGRAM)
    set(launcher ${CMAKE_CXX_COMPILER_LAUNCHER})
  endif()
  foreach(source IN LISTS ARGN)
    get_filename_component(name ${source} NAME_WE)
    set(compiled tsallis_cuda_${name})
    if(TARGET ${compiled})
      get_target_property(object ${compiled} TSALLIS_OBJECT)
    else()
      set(object ${CMAKE_CURRENT_BINARY_DIR}/cuda/${name}.o)
      add_custom_command(
        OUTPUT ${object} DEPENDS ${source} DEPFILE ${object}.d VERBATIM
        COMMAND ${CMAKE_COMMAND} -E make_directory ${CMAKE_CURRENT_BINARY_DIR}/cuda
        COMMAND ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/../scripts/compile_cuda.sh ${CMAKE_CURRENT_BINARY_DIR}/cuda/${name}.ptxas
                ${launcher} ${TSALLIS_NVCC} ${flags} -I${CMAKE_CURRENT_FUNCTION_LIST_DIR}/../src -I${CMAKE_CURRENT_FUNCTION_LIST_DIR}/../include
                -MD -MF ${object}.d -MT ${object} -c ${source} -o ${object}
        COMMENT "Compiling CUDA kernels: ${name}")
      add_custom_target(${compiled} DEPENDS ${object})
      set_target_properties(${compiled} PROPERTIES TSALLIS_OBJECT ${object})
    endif()
    add_dependencies(${target} ${compiled})
    target_sources(${target} PRIVATE ${object})
    set_source_files_properties(${object} PROPERTIES EXTERNAL_OBJECT TRUE GENERATED TRUE)
  endforeach()
endfunction()
