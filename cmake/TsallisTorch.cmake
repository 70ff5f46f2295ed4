# LibTorch out of the Python wheel.
include(TsallisTorchFolder)
set(torch_root ${TSALLIS_TORCH_ROOT})

# Not find_package(Torch): in torch's CUDA builds, which are what pip installs by default, that asks for the CUDA
# toolkit. We need headers and two libraries, and a program that does not load the CUDA half starts sooner.
include(${torch_config}/TorchConfigVersion.cmake)
set(torch_version ${PACKAGE_VERSION})
if(torch_version VERSION_LESS 2.10)
  message(FATAL_ERROR "tsallis needs torch 2.10 or newer, got ${torch_version} in ${torch_root}")
endif()
message(STATUS "torch ${torch_version} in ${torch_root}")
add_library(tsallis_libtorch INTERFACE)
target_include_directories(tsallis_libtorch SYSTEM INTERFACE ${torch_root}/include
                                                             ${torch_root}/include/torch/csrc/api/include)
target_link_libraries(tsallis_libtorch INTERFACE ${torch_root}/lib/libtorch_cpu.so ${torch_root}/lib/libc10.so)
# One OpenMP runtime, so one pool of threads: the wheel carries its own libgomp, the kernels link that one too.
# Left to itself the compiler's libgomp has the same name and the search path alone decides which is loaded.
file(GLOB torch_openmp ${torch_root}/lib/libgomp*.so*)
if(torch_openmp)
  set_property(TARGET OpenMP::OpenMP_CXX PROPERTY INTERFACE_LINK_LIBRARIES ${torch_openmp})
endif()
