// tsallis look: Python looks, for models of Hugging Face as for the lab's.
#include <memory>
#include <string>

#include "cli/commands.h"
#include "cli/python_command.h"

namespace tsallis::cli {
namespace {

class LookCommand : public PythonCommand {
 public:
  std::string Name() const override { return "look"; }
  std::string Summary() const override {
    return "Write a page of which keys each token of a text reads";
  }
  std::string Example() const override {
    return "  tsallis look models/asentmax-nape --text README.md --tokens 1000";
  }

 private:
  std::string Module() const override { return "tsallis_look"; }
};

}  // namespace

std::unique_ptr<Command> MakeLook() { return std::make_unique<LookCommand>(); }

}  // namespace tsallis::cli
