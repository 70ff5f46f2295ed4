// Starting the Python that draws pages and makes tokens.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace tsallis::lab {

// This process's environment with `source_dir`/python before whatever PYTHONPATH there is.
std::vector<std::string> PythonEnvironment(const std::filesystem::path& source_dir);

// As exec takes strings: pointers into them, and a null behind the last.
std::vector<char*> Pointers(std::vector<std::string>& strings);

}  // namespace tsallis::lab
