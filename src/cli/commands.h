// The list of commands: add a file with a Make function, and a line in commands.cc.
#pragma once

#include "cli/command.h"

namespace tsallis::cli {

std::unique_ptr<Command> MakeBench();
std::unique_ptr<Command> MakeConvert();
std::unique_ptr<Command> MakeData();
std::unique_ptr<Command> MakeEval();
std::unique_ptr<Command> MakeGenerate();
std::unique_ptr<Command> MakeInfo();
std::unique_ptr<Command> MakeList();
std::unique_ptr<Command> MakeLook();
std::unique_ptr<Command> MakeReport();
std::unique_ptr<Command> MakeReproduce();
std::unique_ptr<Command> MakeStudy();
std::unique_ptr<Command> MakeTask();
std::unique_ptr<Command> MakeTrain();
std::unique_ptr<Command> MakeTranslate();

}  // namespace tsallis::cli
