// The program `tsallis`: parses the command line, runs a command, turns exceptions into exit codes.
//
//   0  done    1  failed    2  a user's mistake    130  interrupted, to be resumed
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <malloc.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <iostream>
#include <new>
#include <string>
#include <system_error>
#include <vector>

#include "cli/commands.h"
#include "cli/options.h"
#include "core/version.h"
#include "lab/config/recipe.h"
#include "lab/studies/reproduce.h"
#include "tsallis/error.h"

namespace {

constexpr int kDone = 0;
constexpr int kFailed = 1;
constexpr int kMistake = 2;
constexpr int kInterrupted = 130;

std::atomic<bool> stop{false};
std::atomic<bool> patient{false};
static_assert(std::atomic<bool>::is_always_lock_free, "used in a signal handler");

// The first signal asks for an orderly end; the second does not wait for it. Several processes are
// sent more than one by torchrun when they do not all end at once; it kills those that take too
// long.
void OnSignal(int) {
  if (stop.exchange(true) && !patient) _exit(kInterrupted);
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

int rank = 0;  // among several processes

int Report(const std::string& what, int code) {
  fmt::print(stderr, "tsallis{}: {}\n", rank > 0 ? fmt::format(" (rank {})", rank) : "", what);
  return code;
}

// Says how to go on with a run that was interrupted, if there is a way. Only the first of several
// processes says it.
int ReportInterrupted(const std::string& what, const tsallis::cli::Invocation& invocation) {
  if (rank > 0) return kInterrupted;
  if (!invocation.resumes) {
    fmt::print(stderr, "tsallis: {}\n", what);
    return kInterrupted;
  }
  const bool resumes = invocation.line.find(" --resume") != std::string::npos;
  const char* start = invocation.launch.size > 1 ? "torchrun ... -m " : "";
  fmt::print(stderr, "tsallis: {}\nTo go on: {}{}{}{}\n", what, start, invocation.line,
             resumes ? "" : " --resume",
             invocation.launch.size > 1 ? " (with any number of processes)" : "");
  return kInterrupted;
}

// UsageError if torchrun started several processes of a command that runs as one.
void CheckTogether(const tsallis::cli::Command& command, const tsallis::lab::Launch& launch) {
  if (launch.size == 1 || command.RunsTogether()) return;
  throw tsallis::lab::UsageError(fmt::format(
      "{} runs as one process, and torchrun started {}: only the command train runs as several",
      command.Name(), launch.size));
}

int ReportOutputError(int error) {
  return Report(fmt::format("standard output: {}", std::strerror(error)), kFailed);
}

// Exit code of a command that has printed all it had to: a full disk is an error, too.
int Flushed(int code) {
  std::cout.flush();
  if (std::cout.good() && std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return code;
  const int failed = ReportOutputError(errno);
  return code == kDone ? failed : code;
}

// --help and --version end here too, with code 0.
int ReportParseError(const CLI::App& app, const CLI::ParseError& error) {
  if (error.get_exit_code() == 0) return Flushed(app.exit(error));
  const std::string what = tsallis::cli::DescribeParseError(app, error);
  const auto parsed = app.get_subcommands();
  const std::string command = parsed.empty() ? "" : " " + parsed.front()->get_name();
  return Report(what + "\nSee: tsallis" + command + " --help", kMistake);
}

}  // namespace

int main(int argc, char** argv) {
  // Training allocates and frees the same large tensors in every step. By default each of them
  // would be mapped from the system and returned to it, page faults included; keep them in the heap
  // instead.
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  InstallSignalHandlers();

  CLI::App app{"Tsallis: attention that stays sharp when the context grows.", "tsallis"};
  app.require_subcommand(1);
  app.set_version_flag("--version", std::string(tsallis::Version()));
  app.footer(
      "Example:\n  tsallis reproduce max-retrieval\n\n"
      "Exit codes: 0 done, 1 failed, 2 a mistake in what was asked, 130 interrupted (resumable).\n"
      "Environment: NO_COLOR, TSALLIS_PYTHON (draws figures), TSALLIS_SOURCE_DIR (experiments/),\n"
      "TSALLIS_PROCESS_TIMEOUT (seconds that processes of torchrun wait for each other).");
  const auto commands = tsallis::cli::AllCommands();
  std::vector<CLI::App*> subcommands;
  for (const auto& command : commands) {
    CLI::App* subcommand = app.add_subcommand(command->Name(), command->Summary());
    command->Declare(*subcommand);
    tsallis::cli::CheckValues(*subcommand);
    subcommand->footer("Example:\n" + command->Example());
    subcommands.push_back(subcommand);
  }
  tsallis::cli::Invocation invocation{.line = CommandLine(argc, argv), .stop = &stop, .launch = {}};
  try {
    invocation.launch =
        tsallis::lab::ReadLaunch([](const char* name) { return std::getenv(name); });
    rank = invocation.launch.rank;
    patient = invocation.launch.size > 1;
    app.parse(argc, argv);
    for (std::size_t i = 0; i < commands.size(); ++i) {
      if (!subcommands[i]->parsed()) continue;
      CheckTogether(*commands[i], invocation.launch);
      invocation.resumes = subcommands[i]->get_option_no_throw("--resume") != nullptr;
      return Flushed(commands[i]->Run(invocation));
    }
    return kDone;
  } catch (const CLI::ParseError& error) {
    return ReportParseError(app, error);
  } catch (const tsallis::lab::UsageError& error) {
    return Report(error.what(), kMistake);
  } catch (const tsallis::InvalidArgument& error) {
    return Report(error.what(), kMistake);
  } catch (const tsallis::lab::Interrupted& error) {
    return ReportInterrupted(error.what(), invocation);
  } catch (const std::bad_alloc&) {
    return Report("out of memory", kFailed);
  } catch (const c10::Error& error) {
    return Report(error.what_without_backtrace(), kFailed);
  } catch (const std::system_error& error) {
    if (std::ferror(stdout) != 0) return ReportOutputError(error.code().value());
    return Report(error.what(), kFailed);
  } catch (const std::exception& error) {
    return Report(error.what(), kFailed);
  }
}
