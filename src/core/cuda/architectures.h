// Which GPUs compiled kernels run on: apart from CUDA's runtime, so that it is tested without.
#pragma once

#include <string>
#include <vector>

namespace tsallis::cuda {

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
