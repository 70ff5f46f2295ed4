// A command of the program: declares its options, then runs. The list of all of them is in
// commands.cc.
#pragma once

#include <CLI/CLI.hpp>
#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "lab/train/launch.h"

namespace tsallis::cli {

// Every command gets these from main.
struct Invocation {
  std::string line;               // the command line as it could be typed again
  const std::atomic<bool>* stop;  // becomes true on SIGINT or SIGTERM
  lab::Launch launch;             // alone, or one of several processes
  bool resumes = false;           // the command has --resume
};

class Command {
 public:
  Command() = default;
  Command(const Command&) = delete;
  Command& operator=(const Command&) = delete;
  virtual ~Command() = default;

  virtual std::string Name() const = 0;
  virtual std::string Summary() const = 0;  // one line
  virtual std::string Example() const = 0;  // shown below the options
  virtual void Declare(CLI::App& app) = 0;
  // Whether several processes may run it together.
  virtual bool RunsTogether() const { return false; }
  // Returns the exit code; throws UsageError for a user's mistake, anything else for a failure.
  virtual int Run(const Invocation& invocation) = 0;
};

std::vector<std::unique_ptr<Command>> AllCommands();

}  // namespace tsallis::cli
