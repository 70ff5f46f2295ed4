// For tests of vector kernels.
#pragma once

#include <gtest/gtest.h>

#include <hwy/targets.h>
#include <functional>

namespace tsallis::lab {

// Runs the check on every instruction set that this machine has and the library was compiled for.
inline void OnEveryTarget(const std::function<void()>& check) {
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    check();
  }
  hwy::SetSupportedTargetsForTest(0);
}

}  // namespace tsallis::lab
