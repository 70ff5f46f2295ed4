#include <tsallis/rows.h>

#include <cmath>
#include <cstdio>

// Sparsemax of one row: p = [0.75, 0.25, 0].
int main() {
  const float scores[] = {1.0f, 0.5f, -1.0f};
  float probabilities[] = {-1.0f, -1.0f, -1.0f};
  tsallis::RowMapParams params;
  params.alpha = 2.0;
  const tsallis::ConstRows in = {scores, tsallis::DType::kFloat32, 1, 3, 3};
  const tsallis::MutableRows out = {probabilities, tsallis::DType::kFloat32, 1, 3, 3};
  tsallis::RowsForward(tsallis::Context{1}, params, in, out);
  std::printf("%g %g %g\n", probabilities[0], probabilities[1], probabilities[2]);
  return std::abs(probabilities[0] - 0.75f) < 1e-6f && probabilities[2] == 0.0f ? 0 : 1;
}
