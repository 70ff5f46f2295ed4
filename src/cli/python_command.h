// Commands that Python does, where their peers and models are.
#pragma once

#include <string>

#include "cli/command.h"

namespace tsallis::cli {

// Hands the rest of the command line, --help too, to `python -m MODULE`, whose exit code is the
// program's.
class PythonCommand : public Command {
 public:
  void Declare(CLI::App& app) override;
  int Run(const Invocation& invocation) override;

 private:
  virtual std::string Module() const = 0;

  CLI::App* app_ = nullptr;
};

}  // namespace tsallis::cli
