#include "lab/base/python.h"

#include <unistd.h>

#include <string_view>

#include "lab/base/paths.h"

namespace tsallis::lab {

std::vector<std::string> PythonEnvironment(const std::filesystem::path& source_dir) {
  constexpr std::string_view kPythonPath = "PYTHONPATH=";
  std::vector<std::string> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    if (!text.starts_with(kPythonPath)) environment.emplace_back(text);
  }
  environment.push_back(std::string(kPythonPath) + PythonPath(source_dir));
  return environment;
}

std::vector<char*> Pointers(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  pointers.reserve(strings.size() + 1);
  for (std::string& text : strings) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace tsallis::lab
