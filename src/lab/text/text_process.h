// The Python process beside this one that knows texts (python/tsallis_text), and messages to it.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace tsallis::lab {

// Messages are a length of four bytes, little-endian, and as many bytes. An answer begins with one
// byte more: 0, or 1 and what went wrong.
class TextProcess {
 public:
  // `arguments` of python -m tsallis_text. Signals of the terminal do not reach it: this process
  // says when it ends.
  explicit TextProcess(std::vector<std::string> arguments);
  TextProcess(const TextProcess&) = delete;
  TextProcess& operator=(const TextProcess&) = delete;
  ~TextProcess();  // ends it, whatever it is at

  // UsageError for 4 GiB or more.
  void Send(const std::string& message);

  // UsageError with what the other side says went wrong. `waiting` is called at once and a few
  // times a second until an answer comes; what it throws ends the wait.
  std::string Receive(const std::function<void()>& waiting = {});

 private:
  void SendAll(const char* data, std::size_t size);
  void ReceiveAll(char* data, std::size_t size);

  int socket_ = -1;
  pid_t child_ = -1;
};

}  // namespace tsallis::lab
