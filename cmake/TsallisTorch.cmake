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
