// Exceptions that the library throws. Nothing here exits, aborts or prints.
#pragma once

#include <stdexcept>
#include <string>

namespace tsallis {

// A caller's mistake: the message names the argument, what was expected and what came.
class InvalidArgument : public std::invalid_argument {
 public:
  InvalidArgument(const std::string& argument, const std::string& expected,
                  const std::string& actual)
      : std::invalid_argument(argument + ": expected " + expected + ", got " + actual),
        argument_(argument),
        expected_(expected),
        actual_(actual) {}

  const std::string& argument() const { return argument_; }
  const std::string& expected() const { return expected_; }
  const std::string& actual() const { return actual_; }

 private:
  std::string argument_, expected_, actual_;
};

// A call of a device's runtime failed: the message names the call and says what the runtime said.
class DeviceError : public std::runtime_error {
 public:
  DeviceError(const std::string& call, const std::string& said)
      : std::runtime_error(call + ": " + said), call_(call) {}

  const std::string& call() const { return call_; }

 private:
  std::string call_;
};

}  // namespace tsallis
