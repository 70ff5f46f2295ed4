// Exceptions that end a command of the program, beside its failures.
#pragma once

#include <stdexcept>

namespace tsallis::lab {

// A user's mistake in a recipe or on the command line: the program ends with exit code 2.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Ctrl-C: finished work and checkpoints are on disk; exit code 130.
class Interrupted : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace tsallis::lab
