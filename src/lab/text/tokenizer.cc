#include "lab/text/tokenizer.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "lab/base/errors.h"
#include "lab/base/paths.h"
#include "lab/base/python.h"

namespace tsallis::lab {

// Messages are a length of four bytes, little-endian, and as many bytes. An answer begins with one
// byte more: 0, or 1 and what went wrong.
class Tokenizer::Process {
 public:
  explicit Process(std::vector<std::string> arguments) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) Fail("socketpair");
    socket_ = ends[0];
    const std::string python = PythonExecutable().string();
    arguments.insert(arguments.begin(), {python, "-m", "tsallis_text"});
    std::vector<std::string> environment = PythonEnvironment(SourceDir());
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    const int failure = posix_spawnp(&child_, python.c_str(), &actions, nullptr,
                                     Pointers(arguments).data(), Pointers(environment).data());
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    if (failure == 0) return;
    close(socket_);
    throw std::runtime_error(python + ": cannot be run: " + std::strerror(failure));
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;
  ~Process() {
    close(socket_);
    while (waitpid(child_, nullptr, 0) < 0 && errno == EINTR) {
    }
  }

  void Send(const std::string& message) {
    const auto size = static_cast<std::uint32_t>(message.size());
    if (size != message.size()) throw UsageError("a text of 4 GiB or more cannot become tokens");
    SendAll(reinterpret_cast<const char*>(&size), sizeof size);
    SendAll(message.data(), message.size());
  }

  // UsageError with what the other side says went wrong.
  std::string Receive() {
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

 private:
  [[noreturn]] static void Fail(const char* what) {
    throw std::runtime_error(std::string("tsallis_text: ") + what + ": " + std::strerror(errno));
  }

  // What stands in the way of sending is told by the answer that is waiting.
  void SendAll(const char* data, std::size_t size) {
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

  void ReceiveAll(char* data, std::size_t size) {
    while (size > 0) {
      const ssize_t got = recv(socket_, data, size, 0);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) Fail("recv");
      if (got == 0) throw std::runtime_error("tsallis_text: ended without an answer");
      data += got;
      size -= static_cast<std::size_t>(got);
    }
  }

  int socket_ = -1;
  pid_t child_ = -1;
};

Tokenizer::Tokenizer(const std::filesystem::path& file)
    : file_(std::filesystem::absolute(file)),
      process_(std::make_unique<Process>(std::vector<std::string>{"encode", file_.string()})) {
  vocabulary_ = std::stoll(process_->Receive());
}

Tokenizer::~Tokenizer() = default;

std::vector<std::uint32_t> Tokenizer::Encode(const std::string& text) {
  process_->Send(text);
  const std::string answer = process_->Receive();
  std::vector<std::uint32_t> tokens(answer.size() / 4);
  std::memcpy(tokens.data(), answer.data(), 4 * tokens.size());
  return tokens;
}

std::string Tokenizer::Decode(const std::vector<std::uint32_t>& tokens) {
  if (decoder_ == nullptr) {
    decoder_ = std::make_unique<Process>(std::vector<std::string>{"decode", file_.string()});
    decoder_->Receive();  // the library is there
  }
  decoder_->Send({reinterpret_cast<const char*>(tokens.data()), 4 * tokens.size()});
  return decoder_->Receive();
}

void Tokenizer::Train(std::int64_t vocabulary, const std::filesystem::path& file,
                      const std::function<bool(std::string&)>& next) {
  Process process({"train", std::to_string(vocabulary), std::filesystem::absolute(file).string()});
  process.Receive();  // the library is there
  std::string text;
  while (next(text)) {
    if (!text.empty()) process.Send(text);
  }
  process.Send("");
  process.Receive();
}

}  // namespace tsallis::lab
