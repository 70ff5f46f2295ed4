// The Python process beside this one that knows texts (python/tsallis_text), and messages to it.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <string>
#include <vector>

namespace tsallis::lab {

// Messages are a length of four bytes, little-endian, and as many bytes. An answer begins with one
// byte more: 0, or 1 and what went wrong.
class TextProcess {
 public:
  // `arguments` of python -m tsallis_text.
  explicit TextProcess(std::vector<std::string> arguments);
  TextProcess(const TextProcess&) = delete;
  TextProcess& operator=(const TextProcess&) = delete;
  ~TextProcess();

  // UsageError for 4 GiB or more.
  void Send(const std::string& message);

  // UsageError with what the other side says went wrong.
  std::string Receive();

 private:
  void SendAll(const char* data, std::size_t size);
  void ReceiveAll(char* data, std::size_t size);

  int socket_ = -1;
  pid_t child_ = -1;
};

}  // namespace tsallis::lab
