#include "cli/commands.h"

namespace tsallis::cli {

std::vector<std::unique_ptr<Command>> AllCommands() {
  std::vector<std::unique_ptr<Command>> commands;
  commands.push_back(MakeReproduce());
  commands.push_back(MakeStudy());
  commands.push_back(MakeTrain());
  commands.push_back(MakeEval());
  commands.push_back(MakeGenerate());
  commands.push_back(MakeTranslate());
  commands.push_back(MakeReport());
  commands.push_back(MakeTask());
  commands.push_back(MakeData());
  commands.push_back(MakeList());
  commands.push_back(MakeInfo());
  commands.push_back(MakeLook());
  commands.push_back(MakeConvert());
  commands.push_back(MakeBench());
  return commands;
}

}  // namespace tsallis::cli
