// See algorithm.h.
#pragma once

#include <chrono>

namespace gloo {

namespace transport {
class UnboundBuffer;
}  // namespace transport

class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
};

}  // namespace gloo
