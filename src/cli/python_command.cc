#include "cli/python_command.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <utility>
#include <vector>

#include "lab/base/paths.h"

namespace tsallis::cli {

void PythonCommand::Declare(CLI::App& app) {
  app.prefix_command();
  app.set_help_flag();
  app_ = &app;
}

int PythonCommand::Run(const Invocation&) {
  const std::string python = lab::PythonExecutable().string();
  std::vector<std::string> arguments = {python, "-m", Module()};
  for (std::string& word : app_->remaining()) arguments.push_back(std::move(word));
  std::vector<char*> pointers;
  pointers.reserve(arguments.size() + 1);
  for (std::string& word : arguments) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  setenv("PYTHONPATH", lab::PythonPath(lab::SourceDir()).c_str(), /*overwrite=*/1);
  execvp(python.c_str(), pointers.data());
  throw std::runtime_error(fmt::format("{}: cannot be run: {}", python, std::strerror(errno)));
}

}  // namespace tsallis::cli
