// The program `tsallis`: parses the command line, runs a command, turns exceptions into exit codes.
//
//   0  done    1  failed    2  a user's mistake    130  interrupted, to be resumed
#include <fmt/format.h>
#include <malloc.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <exception>
#include <string>

#include "cli/commands.h"
#include "lab/config/recipe.h"
#include "lab/studies/reproduce.h"
#include "tsallis/error.h"

namespace {

constexpr int kDone = 0;
constexpr int kFailed = 1;
constexpr int kMistake = 2;
constexpr int kInterrupted = 130;

std::atomic<bool> stop{false};
static_assert(std::atomic<bool>::is_always_lock_free, "used in a signal handler");

// The first signal asks for an orderly end; the second does not wait for it.
void OnSignal(int) {
  if (stop.exchange(true)) _exit(kInterrupted);
}

void InstallSignalHandlers() {
  struct sigaction action {};
  action.sa_handler = OnSignal;
  action.sa_flags = SA_RESTART;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

// The command line as it could be typed again.
std::string CommandLine(int argc, char** argv) {
  std::string line = "tsallis";
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const bool plain =
        !word.empty() &&
        word.find_first_not_of(
            "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=+.,/:@%") ==
            std::string::npos;
    if (plain) {
      line += " " + word;
      continue;
    }
    line += " '";
    for (const char c : word) line += c == '\'' ? std::string("'\\''") : std::string(1, c);
    line += "'";
  }
  return line;
}

int Report(const char* what, int code) {
  fmt::print(stderr, "tsallis: {}\n", what);
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  // Training allocates and frees the same large tensors in every step. By default each of them would be mapped from
  // the system and returned to it, page faults included; keep them in the heap instead.
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  InstallSignalHandlers();

  CLI::App app{"Tsallis: attention that stays sharp when the context grows.", "tsallis"};
  app.require_subcommand(1);
  const auto commands = tsallis::cli::AllCommands();
  std::vector<CLI::App*> subcommands;
  for (const auto& command : commands) {
    CLI::App* subcommand = app.add_subcommand(command->Name(), command->Summary());
    command->Declare(*subcommand);
    subcommand->footer("Example:\n" + command->Example());
    subcommands.push_back(subcommand);
  }
  const tsallis::cli::Invocation invocation{.line = CommandLine(argc, argv), .stop = &stop};
  try {
    app.parse(argc, argv);
    for (std::size_t i = 0; i < commands.size(); ++i) {
      if (subcommands[i]->parsed()) return commands[i]->Run(invocation);
    }
    return kDone;
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kDone : kMistake;
  } catch (const tsallis::lab::UsageError& error) {
    return Report(error.what(), kMistake);
  } catch (const tsallis::InvalidArgument& error) {
    return Report(error.what(), kMistake);
  } catch (const tsallis::lab::Interrupted& error) {
    const bool resumes = invocation.line.find(" --resume") != std::string::npos;
    fmt::print(stderr, "tsallis: {}\nTo go on: {}{}\n", error.what(), invocation.line,
               resumes ? "" : " --resume");
    return kInterrupted;
  } catch (const std::exception& error) {
    return Report(error.what(), kFailed);
  }
}
