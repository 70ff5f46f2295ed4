# LibTorch out of the Python wheel. Looks where the interpreter finds the package, without importing it
# (which takes seconds); -DTorch_DIR or -DCMAKE_PREFIX_PATH chooses another one.
set(TSALLIS_PYTHON ${PROJECT_SOURCE_DIR}/.venv/bin/python CACHE FILEPATH "Python with the pinned packages")
if(NOT Torch_DIR)
  execute_process(
    COMMAND ${TSALLIS_PYTHON} -c
            "import importlib.util as u, os; print(os.path.dirname(u.find_spec('torch').origin))"
    OUTPUT_VARIABLE torch_folder OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE status)
  if(status EQUAL 0)
    list(APPEND CMAKE_PREFIX_PATH ${torch_folder}/share/cmake)
  else()
    message(WARNING "no torch in ${TSALLIS_PYTHON}; scripts/setup.sh prepares it")
  endif()
endif()
find_package(Torch REQUIRED)

# One OpenMP runtime, so one pool of threads: the wheel carries its own libgomp, the kernels link that one too.
# Left to itself the compiler's libgomp has the same name and the search path alone decides which is loaded.
get_filename_component(torch_library_folder ${TORCH_LIBRARY} DIRECTORY)
file(GLOB torch_openmp ${torch_library_folder}/libgomp*.so*)
if(torch_openmp)
  set_property(TARGET OpenMP::OpenMP_CXX PROPERTY INTERFACE_LINK_LIBRARIES ${torch_openmp})
endif()
