#include "lab/train/adam_step.h"

#include <gtest/gtest.h>

#include <vector>

#include "core/every_target.h"

namespace tsallis::lab {
namespace {

// Its definition is held by the tests of the optimiser.
TEST(AdamStep, AGradientWhoseSquareIsBeyondFloatStopsItsWeightAndNoOther) {
  ForEachTarget([](const std::string&) {
    std::vector<float> w(20, 1.0F);
    std::vector<float> m(20);
    std::vector<float> v(20);
    std::vector<float> g(20, 1.0F);
    g[3] = 1e30F;
    for (int step = 1; step <= 3; ++step) {
      AdamStep({1e-3F, 0.9F, 0.999F, 1e-8F, 0.0F, 0.1F, 0.001F}, 20, g.data(), w.data(), m.data(),
               v.data());
    }
    EXPECT_EQ(w[3], 1.0F);
    EXPECT_LT(w[2], 1.0F);
    EXPECT_EQ(w[2], w[19]);
  });
}

}  // namespace
}  // namespace tsallis::lab
