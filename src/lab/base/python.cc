#include "lab/base/python.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string_view>

#include "lab/base/paths.h"

namespace tsallis::lab {
namespace {

constexpr std::size_t kKept = 4096;  // bytes of output kept for an error message

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd) : fd_(fd) {}
  ~FileDescriptor() { Close(); }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;

  int get() const { return fd_; }
  void Close() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }

 private:
  int fd_;
};

// A file without a name that holds a text, to be read from its beginning; below 0 if there is none.
int FileOf(const std::string& text) {
  const int fd = memfd_create("input", MFD_CLOEXEC);
  for (std::size_t done = 0; fd >= 0 && done < text.size();) {
    const ssize_t count = pwrite(fd, text.data() + done, text.size() - done, done);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return -1;
    done += static_cast<std::size_t>(count);
  }
  return fd;
}

// Everything until end of file; only the last kKept bytes are kept.
std::string ReadTail(int fd) {
  std::string tail;
  char buffer[4096];
  while (true) {
    const ssize_t count = read(fd, buffer, sizeof buffer);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    tail.append(buffer, static_cast<std::size_t>(count));
    if (tail.size() > 2 * kKept) tail.erase(0, tail.size() - kKept);
  }
  if (tail.size() > kKept) {
    tail.erase(0, tail.size() - kKept);
    const std::size_t line = tail.find('\n');  // from a whole line on
    if (line != std::string::npos) tail.erase(0, line + 1);
  }
  while (!tail.empty() && (tail.back() == '\n' || tail.back() == ' ')) tail.pop_back();
  return tail;
}

}  // namespace

std::vector<std::string> PythonEnvironment() {
  constexpr std::string_view kPythonPath = "PYTHONPATH=";
  std::vector<std::string> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    if (!text.starts_with(kPythonPath)) environment.emplace_back(text);
  }
  environment.push_back(std::string(kPythonPath) + PythonPath(SourceDir()));
  return environment;
}

std::vector<char*> Pointers(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  pointers.reserve(strings.size() + 1);
  for (std::string& text : strings) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

void RunPython(const std::string& module, std::vector<std::string> arguments, bool show,
               const std::string& text) {
  arguments.insert(arguments.begin(), {PythonExecutable().string(), "-m", module});
  const std::string shown = fmt::format("{}", fmt::join(arguments, " "));
  if (show) std::fflush(stdout);  // what was printed before stands above

  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    throw std::runtime_error(fmt::format("{}: pipe: {}", shown, std::strerror(errno)));
  }
  FileDescriptor output(ends[0]);
  FileDescriptor end(ends[1]);
  FileDescriptor input(FileOf(text));
  if (input.get() < 0) {
    throw std::runtime_error(fmt::format("{}: input: {}", shown, std::strerror(errno)));
  }

  std::vector<std::string> environment = PythonEnvironment();
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, input.get(), STDIN_FILENO);
  if (!show) posix_spawn_file_actions_adddup2(&actions, end.get(), STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, end.get(), STDERR_FILENO);
  pid_t child = -1;
  const int failure = posix_spawnp(&child, arguments[0].c_str(), &actions, nullptr,
                                   Pointers(arguments).data(), Pointers(environment).data());
  posix_spawn_file_actions_destroy(&actions);
  if (failure != 0) {
    throw std::runtime_error(fmt::format("{}: cannot be run: {}", shown, std::strerror(failure)));
  }
  end.Close();

  const std::string tail = ReadTail(output.get());
  int status = 0;
  while (waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) {
      throw std::runtime_error(fmt::format("{}: wait: {}", shown, std::strerror(errno)));
    }
  }
  if (WIFSIGNALED(status)) {
    throw std::runtime_error(
        fmt::format("{}: killed by signal {}\n{}", shown, WTERMSIG(status), tail));
  }
  if (WEXITSTATUS(status) != 0) {
    throw std::runtime_error(fmt::format("{}: exit code {}\n{}", shown, WEXITSTATUS(status), tail));
  }
}

}  // namespace tsallis::lab
