# LibTorch out of the Python wheel. Looks where the interpreter finds the package, without importing it
# (which takes seconds); -DTorch_DIR or -DCMAKE_PREFIX_PATH chooses another one.
set(python_default ${PROJECT_SOURCE_DIR}/.venv/bin/python)
if(SKBUILD)
  set(python_default ${Python_EXECUTABLE})
endif()
set(TSALLIS_PYTHON ${python_default} CACHE FILEPATH "Python with the pinned packages")
if(NOT Torch_DIR)
  # pip builds in isolation: its PYTHONPATH hides the environment that the package is installed into. That
  # one has the torch that counts, and -E does not look at PYTHONPATH.
  foreach(flags "" -E)
    execute_process(
      COMMAND ${TSALLIS_PYTHON} ${flags} -c
              "import importlib.util as u, os; print(os.path.dirname(u.find_spec('torch').origin))"
      OUTPUT_VARIABLE torch_folder OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE status)
    if(status EQUAL 0)
      list(APPEND CMAKE_PREFIX_PATH ${torch_folder}/share/cmake)
      break()
    endif()
  endforeach()
  if(SKBUILD AND NOT status EQUAL 0)
    message(FATAL_ERROR "tsallis is built against the torch that will import it, and ${TSALLIS_PYTHON} has none. "
                        "Install torch 2.6 or newer there, then: pip install --no-build-isolation .")
  elseif(NOT status EQUAL 0)
    message(WARNING "no torch in ${TSALLIS_PYTHON}; scripts/setup.sh prepares it")
  endif()
endif()
find_package(Torch REQUIRED)
if(Torch_VERSION VERSION_LESS 2.6)
  message(FATAL_ERROR "tsallis needs torch 2.6 or newer, got ${Torch_VERSION}")
endif()

# One OpenMP runtime, so one pool of threads: the wheel carries its own libgomp, the kernels link that one too.
# Left to itself the compiler's libgomp has the same name and the search path alone decides which is loaded.
get_filename_component(torch_library_folder ${TORCH_LIBRARY} DIRECTORY)
file(GLOB torch_openmp ${torch_library_folder}/libgomp*.so*)
if(torch_openmp)
  set_property(TARGET OpenMP::OpenMP_CXX PROPERTY INTERFACE_LINK_LIBRARIES ${torch_openmp})
endif()

# What python/tsallis/_ops.py compares with the torch that imports it.
file(CONFIGURE OUTPUT ${CMAKE_LIBRARY_OUTPUT_DIRECTORY}/libtsallis_torch.json
     CONTENT "{\"torch\": \"${Torch_VERSION}\"}\n")
