// Numbers that whoever runs a test may set in the environment.
#pragma once

#include <cstdint>
#include <cstdlib>

namespace tsallis {

inline std::uint64_t FromEnvironment(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::strtoull(text, nullptr, 10) : otherwise;
}

}  // namespace tsallis
