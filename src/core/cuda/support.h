// Which GPUs compiled kernels run on, and what calls for them are refused with: apart from CUDA's
// runtime, so that it is tested without.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tsallis/cuda.h"
#include "tsallis/error.h"

namespace tsallis::cuda {

// Throws InvalidArgument for more than a kernel has room for.
inline void CheckMost(const char* name, std::int64_t size, std::int64_t most) {
  if (size <= most) return;
  throw InvalidArgument(name, "at most " + std::to_string(most) + " on a CUDA device",
                        std::to_string(size));
}

// For calls of a library without kernels.
[[noreturn]] inline void ThrowNotCompiled() {
  throw InvalidArgument(
      "context.device",
      "kCpu, as this library was built without CUDA kernels (" + QueryCuda().why_not_compiled + ")",
      "kCuda");
}

// Whether machine code for `architecture` ("80", "90a") runs on a GPU of that capability: within a
// generation forward, with an "a" on itself alone.
inline bool Runs(const std::string& architecture, int major, int minor) {
  const int number = std::stoi(architecture), device = 10 * major + minor;
  return architecture.back() == 'a' ? number == device : number / 10 == major && number <= device;
}

// Why kernels for these architectures do not run on a GPU; empty: they do. intermediate: the
// architecture whose code drivers compile for GPUs that come after it; empty: none.
inline std::string WhyUnusable(const std::vector<std::string>& architectures,
                               const std::string& intermediate, int major, int minor) {
  if (!intermediate.empty() && 10 * major + minor >= std::stoi(intermediate)) return {};
  std::string all;
  for (const std::string& architecture : architectures) {
    if (Runs(architecture, major, minor)) return {};
    all += (all.empty() ? "sm_" : ", sm_") + architecture;
  }
  return "the kernels were compiled for " + all +
         (intermediate.empty() ? "" : " and what comes after sm_" + intermediate);
}

}  // namespace tsallis::cuda
