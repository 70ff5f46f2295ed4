// Where the lab finds the things that are not in the program: the source tree (experiments/,
// python/) and the Python that draws figures. Both are known from the build and can be overridden
// at run time.
#pragma once

#include <filesystem>
#include <string>

namespace tsallis::lab {

// The environment variable TSALLIS_PYTHON if set and not empty, else the Python of the build's
// .venv.
std::filesystem::path PythonExecutable();

// The environment variable TSALLIS_SOURCE_DIR if set and not empty, else the tree that was built.
std::filesystem::path SourceDir();

// What the environment variable PYTHONPATH must be for Python to find `source_dir`/python first.
std::string PythonPath(const std::filesystem::path& source_dir);

}  // namespace tsallis::lab
