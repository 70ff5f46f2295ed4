#include "cli/commands.h"

namespace tsallis::cli {

std::vector<std::unique_ptr<Command>> AllCommands() {
  std::vector<std::unique_ptr<Command>> commands;
  commands.push_back(MakeReproduce());
  return commands;
}

}  // namespace tsallis::cli
