#include "lab/report/render.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "lab/base/python.h"

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

// Runs the module on the folder. `show`: what it prints goes to standard output.
void RunPython(const std::filesystem::path& python, const std::filesystem::path& source_dir,
               const std::string& module, const std::filesystem::path& dir, bool show,
               const std::vector<std::string>& more) {
  std::vector<std::string> arguments = {python.string(), "-m", module,
                                        std::filesystem::absolute(dir).string()};
  arguments.insert(arguments.end(), more.begin(), more.end());
  if (show) std::fflush(stdout);  // what was printed before stands above
  const std::string shown = fmt::format("{} -m {} {}", python.string(), module, dir.string());

  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    throw std::runtime_error(fmt::format("{}: pipe: {}", shown, std::strerror(errno)));
  }
  FileDescriptor output(ends[0]);
  FileDescriptor input(ends[1]);

  std::vector<std::string> environment = PythonEnvironment(source_dir);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  if (!show) posix_spawn_file_actions_adddup2(&actions, input.get(), STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, input.get(), STDERR_FILENO);
  pid_t child = -1;
  const int failure = posix_spawnp(&child, arguments[0].c_str(), &actions, nullptr,
                                   Pointers(arguments).data(), Pointers(environment).data());
  posix_spawn_file_actions_destroy(&actions);
  if (failure != 0) {
    throw std::runtime_error(fmt::format("{}: cannot be run: {}", shown, std::strerror(failure)));
  }
  input.Close();

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

}  // namespace

void RenderReport(const std::filesystem::path& dir, const std::filesystem::path& python,
                  const std::filesystem::path& source_dir, const TableOptions& table) {
  std::vector<std::string> more;
  if (table.show) {
    more = {"--table", "--width", std::to_string(table.width)};
    if (table.color) more.emplace_back("--color");
  }
  RunPython(python, source_dir, "tsallis_report", dir, table.show, more);
}

void RenderScores(const std::filesystem::path& dir, const std::filesystem::path& python,
                  const std::filesystem::path& source_dir) {
  RunPython(python, source_dir, "tsallis_report.scores", dir, false, {});
}

}  // namespace tsallis::lab
