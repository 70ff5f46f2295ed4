// tsallis bench: hands the command line to Python, where the peers are.
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "lab/base/paths.h"

namespace tsallis::cli {

namespace {

class BenchCommand : public Command {
 public:
  std::string Name() const override { return "bench"; }
  std::string Summary() const override {
    return "Measure attention against PyTorch and other packages";
  }
  std::string Example() const override { return "  tsallis bench attention --quick"; }

  void Declare(CLI::App& app) override {
    // All options, --help too, are Python's.
    app.prefix_command();
    app.set_help_flag();
    app_ = &app;
  }

  int Run(const Invocation&) override {
    const std::string python = lab::PythonExecutable().string();
    std::vector<std::string> arguments = {python, "-m", "tsallis.bench"};
    for (std::string& word : app_->remaining()) arguments.push_back(std::move(word));
    std::vector<char*> pointers;
    pointers.reserve(arguments.size() + 1);
    for (std::string& word : arguments) pointers.push_back(word.data());
    pointers.push_back(nullptr);
    setenv("PYTHONPATH", lab::PythonPath(lab::SourceDir()).c_str(), /*overwrite=*/1);
    execvp(python.c_str(), pointers.data());
    throw std::runtime_error(fmt::format("{}: cannot be run: {}", python, std::strerror(errno)));
  }

 private:
  CLI::App* app_ = nullptr;
};

}  // namespace

std::unique_ptr<Command> MakeBench() { return std::make_unique<BenchCommand>(); }

}  // namespace tsallis::cli
