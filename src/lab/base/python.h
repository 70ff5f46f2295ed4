// Starting the Python that draws pages and makes tokens.
#pragma once

#include <string>
#include <vector>

namespace tsallis::lab {

// This process's environment with SourceDir()/python before whatever PYTHONPATH there is.
std::vector<std::string> PythonEnvironment();

// Turns strings into the form that exec takes: pointers into them, and a null behind the last.
std::vector<char*> Pointers(std::vector<std::string>& strings);

// Runs PythonExecutable() -m module arguments with SourceDir()/python at the head of PYTHONPATH.
// `show`: what it prints goes to standard output. It reads `input`. No shell is involved. Throws
// std::runtime_error with the end of what it printed if it cannot be run or fails.
void RunPython(const std::string& module, std::vector<std::string> arguments, bool show,
               const std::string& input = "");

}  // namespace tsallis::lab
