// tsallis bench: Python measures, because the peers are there.
#include <memory>
#include <string>

#include "cli/commands.h"
#include "cli/python_command.h"

namespace tsallis::cli {
namespace {

class BenchCommand : public PythonCommand {
 public:
  std::string Name() const override { return "bench"; }
  std::string Summary() const override {
    return "Measure attention against PyTorch and other packages";
  }
  std::string Example() const override { return "  tsallis bench attention --quick"; }

 private:
  std::string Module() const override { return "tsallis.bench"; }
};

}  // namespace

std::unique_ptr<Command> MakeBench() { return std::make_unique<BenchCommand>(); }

}  // namespace tsallis::cli
