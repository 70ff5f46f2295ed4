// tsallis convert: Python trains, because the models are Hugging Face's.
#include <memory>
#include <string>

#include "cli/commands.h"
#include "cli/python_command.h"

namespace tsallis::cli {
namespace {

class ConvertCommand : public PythonCommand {
 public:
  std::string Name() const override { return "convert"; }
  std::string Summary() const override {
    return "Fine-tune a softmax language model to sparse attention";
  }
  std::string Example() const override { return "  tsallis convert smollm2"; }

 private:
  std::string Module() const override { return "tsallis_convert"; }
};

}  // namespace

std::unique_ptr<Command> MakeConvert() { return std::make_unique<ConvertCommand>(); }

}  // namespace tsallis::cli
