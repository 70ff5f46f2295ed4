// Starting the Python that draws pages and makes tokens.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace tsallis::lab {

// This process's environment with `source_dir`/python before whatever PYTHONPATH there is.
std::vector<std::string> PythonEnvironment(const std::filesystem::path& source_dir);

// Turns strings into the form that exec takes: pointers into them, and a null behind the last.
std::vector<char*> Pointers(std::vector<std::string>& strings);

// Runs `python -m module arguments` with `source_dir`/python at the head of PYTHONPATH. `show`:
// what it prints goes to standard output. It reads `input`. No shell is involved. Throws
// std::runtime_error with the end of what it printed if it cannot be run or fails.
void RunPython(const std::string& module, std::vector<std::string> arguments, bool show,
               const std::filesystem::path& python, const std::filesystem::path& source_dir,
               const std::string& input = "");
// With PythonExecutable() and SourceDir().
void RunPython(const std::string& module, std::vector<std::string> arguments, bool show);

}  // namespace tsallis::lab
