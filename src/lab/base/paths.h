// Finds the things that are not in the program: the source tree (experiments/, python/) and the
// Python that draws figures. Both are known from the build and can be overridden at run time.
#pragma once

#include <filesystem>
#include <string>

namespace tsallis::lab {

// The environment variable TSALLIS_PYTHON if set and not empty, else the Python of the build's
// .venv.
std::filesystem::path PythonExecutable();

// The environment variable TSALLIS_SOURCE_DIR if set and not empty, else the tree that was built.
std::filesystem::path SourceDir();

// The value of the environment variable PYTHONPATH with which Python finds `source_dir`/python
// first.
std::string PythonPath(const std::filesystem::path& source_dir);

}  // namespace tsallis::lab
