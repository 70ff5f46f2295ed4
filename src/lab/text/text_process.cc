#include "lab/text/text_process.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <stdexcept>

#include "lab/base/errors.h"
#include "lab/base/paths.h"
#include "lab/base/python.h"

namespace tsallis::lab {
namespace {

[[noreturn]] void Fail(const char* what) {
  throw std::runtime_error(std::string("tsallis_text: ") + what + ": " + std::strerror(errno));
}

}  // namespace

TextProcess::TextProcess(std::vector<std::string> arguments) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) Fail("socketpair");
  socket_ = ends[0];
  const std::string python = PythonExecutable().string();
  arguments.insert(arguments.begin(), {python, "-m", "tsallis_text"});
  std::vector<std::string> environment = PythonEnvironment();
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  posix_spawnattr_t attributes;  // a group of processes of its own
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  const int failure = posix_spawnp(&child_, python.c_str(), &actions, &attributes,
                                   Pointers(arguments).data(), Pointers(environment).data());
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  if (failure == 0) return;
  close(socket_);
  throw std::runtime_error(python + ": cannot be run: " + std::strerror(failure));
}

TextProcess::~TextProcess() {
  close(socket_);
  kill(child_, SIGTERM);
  while (waitpid(child_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

void TextProcess::Send(const std::string& message) {
  const auto size = static_cast<std::uint32_t>(message.size());
  if (size != message.size()) throw UsageError("a text of 4 GiB or more cannot be sent");
  SendAll(reinterpret_cast<const char*>(&size), sizeof size);
  SendAll(message.data(), message.size());
}

std::string TextProcess::Receive(const std::function<void()>& waiting) {
  constexpr int kMilliseconds = 200;
  pollfd answer{.fd = socket_, .events = POLLIN, .revents = 0};
  if (waiting) {
    do {
      waiting();
    } while (poll(&answer, 1, kMilliseconds) <= 0);
  }
  std::uint32_t size = 0;
  ReceiveAll(reinterpret_cast<char*>(&size), sizeof size);
  std::string message(size, '\0');
  ReceiveAll(message.data(), message.size());
  if (message.empty()) throw std::runtime_error("tsallis_text: an empty answer");
  const bool failed = message.front() != 0;
  message.erase(0, 1);
  if (failed) throw UsageError(message);
  return message;
}

// If sending fails, the other process has usually answered already: Receive() throws its reason.
void TextProcess::SendAll(const char* data, std::size_t size) {
  while (size > 0) {
    const ssize_t sent = send(socket_, data, size, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) {
      Receive();
      Fail("send");
    }
    data += sent;
    size -= static_cast<std::size_t>(sent);
  }
}

void TextProcess::ReceiveAll(char* data, std::size_t size) {
  while (size > 0) {
    const ssize_t got = recv(socket_, data, size, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) Fail("recv");
    if (got == 0) throw std::runtime_error("tsallis_text: ended without an answer");
    data += got;
    size -= static_cast<std::size_t>(got);
  }
}

}  // namespace tsallis::lab
