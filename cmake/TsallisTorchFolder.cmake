# Where the torch is that everything is built against: TSALLIS_TORCH_ROOT, of the Python wheel. Looks where the
# interpreter finds the package, without importing it (which takes seconds); -DTorch_DIR chooses another one.
include_guard()
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
                        "Install torch 2.10 or newer there, then: pip install --no-build-isolation .")
  elseif(NOT status EQUAL 0)
    message(FATAL_ERROR "no torch in ${TSALLIS_PYTHON}; scripts/setup.sh prepares it")
  endif()
endif()
if(NOT EXISTS ${torch_config}/TorchConfig.cmake)
  message(FATAL_ERROR "Torch_DIR: expected the folder of LibTorch's TorchConfig.cmake, got ${torch_config}")
endif()

get_filename_component(TSALLIS_TORCH_ROOT ${torch_config}/../../.. ABSOLUTE)
