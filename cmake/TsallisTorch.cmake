# LibTorch out of the Python wheel. Looks where the interpreter finds the package, without importing it
# (which takes seconds); -DTorch_DIR chooses another one.
set(python_default ${PROJECT_SOURCE_DIR}/.venv/bin/python)
if(SKBUILD)
  set(python_default ${Python_EXECUTABLE})
endif()
set(TSALLIS_PYTHON ${python_default} CACHE FILEPATH "Python with the pinned packages")
set(Torch_DIR "" CACHE PATH "Folder of LibTorch's TorchConfig.cmake; empty: that of TSALLIS_PYTHON")
set(torch_config ${Torch_DIR})
if(NOT torch_config)
  # pip builds in isolation: its PYTHONPATH hides the environment that the package is installed into. That
  # one has the torch that counts, and -E does not look at PYTHONPATH.
  foreach(flags "" -E)
    execute_process(
      COMMAND ${TSALLIS_PYTHON} ${flags} -c
              "import importlib.util as u, os; print(os.path.dirname(u.find_spec('torch').origin))"
      OUTPUT_VARIABLE torch_folder OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE status)
    if(status EQUAL 0)
      set(torch_config ${torch_folder}/share/cmake/Torch)
      break()
    endif()
  endforeach()
  if(SKBUILD AND NOT status EQUAL 0)
    message(FATAL_ERROR "tsallis is built against the torch that will import it, and ${TSALLIS_PYTHON} has none. "
                        "Install torch 2.6 or newer there, then: pip install --no-build-isolation .")
  elseif(NOT status EQUAL 0)
    message(FATAL_ERROR "no torch in ${TSALLIS_PYTHON}; scripts/setup.sh prepares it")
  endif()
endif()
if(NOT EXISTS ${torch_config}/TorchConfig.cmake)
  message(FATAL_ERROR "Torch_DIR: expected the folder of LibTorch's TorchConfig.cmake, got ${torch_config}")
endif()

# Not find_package(Torch): in torch's CUDA builds, which are what pip installs by default, that asks for the CUDA
# toolkit. We need headers and two libraries, and a program that does not load the CUDA half starts sooner.
get_filename_component(torch_root ${torch_config}/../../.. ABSOLUTE)
include(${torch_config}/TorchConfigVersion.cmake)
set(torch_version ${PACKAGE_VERSION})
if(torch_version VERSION_LESS 2.6)
  message(FATAL_ERROR "tsallis needs torch 2.6 or newer, got ${torch_version} in ${torch_root}")
endif()
message(STATUS "torch ${torch_version} in ${torch_root}")
add_library(tsallis_libtorch INTERFACE)
target_include_directories(tsallis_libtorch SYSTEM INTERFACE ${torch_root}/include
                                                             ${torch_root}/include/torch/csrc/api/include)
target_link_libraries(tsallis_libtorch INTERFACE ${torch_root}/lib/libtorch_cpu.so ${torch_root}/lib/libc10.so)
# Some wheels up to 2.6 have the old std::string; then everything that meets torch must.
file(STRINGS ${torch_config}/TorchConfig.cmake old_abi REGEX "^[^#]*_GLIBCXX_USE_CXX11_ABI=0")
if(old_abi)
  target_compile_definitions(tsallis_libtorch INTERFACE _GLIBCXX_USE_CXX11_ABI=0)
  target_compile_definitions(tsallis PUBLIC _GLIBCXX_USE_CXX11_ABI=0)
endif()

# One OpenMP runtime, so one pool of threads: the wheel carries its own libgomp, the kernels link that one too.
# Left to itself the compiler's libgomp has the same name and the search path alone decides which is loaded.
file(GLOB torch_openmp ${torch_root}/lib/libgomp*.so*)
if(torch_openmp)
  set_property(TARGET OpenMP::OpenMP_CXX PROPERTY INTERFACE_LINK_LIBRARIES ${torch_openmp})
endif()

# What python/tsallis/_ops.py compares with the torch that imports it.
file(CONFIGURE OUTPUT ${CMAKE_LIBRARY_OUTPUT_DIRECTORY}/libtsallis_torch.json
     CONTENT "{\"torch\": \"${torch_version}\"}\n")
