// The list of a row in shared memory, and its threshold.
#pragma once

#include <cmath>
#include <cstdint>

#include "attention/cuda/call.h"

namespace tsallis::cuda::inline TSALLIS_SIDE {

// Relative errors that a bound allows for: of z as float32, and of a solution.
inline constexpr float kScoreSlack = 4e-6f, kSolveSlack = 1e-5f;

// A row's list, read and written by the row's quad.
struct ListRow {
  Shared<float> z;
  Shared<int> key;
};

// A threshold as its distance below the largest z: tau = peak - top, 0 < top <= 1.
struct Threshold {
  float peak = -kInfinity, top = 1.0f;
};

// By Newton's method from below; sums have one order. The warp calls it, each quad with its own
// list. sink: one more z; -inf: none.
TSALLIS_DEVICE Threshold SolveList(const ListRow& list, int count, float sink, float alpha,
                                   float power) {
  const int t = Lane() % 4;
  Threshold threshold;
  for (int i = t; i < count; i += 4) threshold.peak = fmaxf(threshold.peak, list.z.Load(i));
  threshold.peak = fmaxf(QuadMax(threshold.peak), sink);
  for (bool moves = true; Any(moves);) {
    float sum = 0.0f, slope = 0.0f;
    for (int i = t; i <= count; i += 4) {
      const float z = i < count ? list.z.Load(i) : sink;
      const float x = threshold.top - (threshold.peak - z);
      if (x > 0.0f) {
        const Weight weight = Weight::Of(x, alpha, power);
        sum += weight.p;
        slope += weight.u;
      }
    }
    sum = QuadSum(sum);
    slope = QuadSum(slope) * power;
    const float next = threshold.top - (sum - 1.0f) / slope;
    moves = count > 0 && next < threshold.top;
    if (moves) threshold.top = next;
  }
  return threshold;
}

// Keeps the entries of the quad's list whose z exceeds `bound`; the number of them.
TSALLIS_DEVICE int CompactList(const ListRow& list, int count, float bound) {
  const int lane = Lane(), t = lane % 4;
  int kept = 0;
  for (int i = 0; Any(i < count); i += 4) {
    const bool in = i + t < count;
    const float z = in ? list.z.Load(i + t) : 0.0f;
    const int key = in ? list.key.Load(i + t) : 0;
    const bool keep = in && z > bound;
    const std::uint32_t quad = Ballot(keep) >> (lane & 28) & 15u;
    SyncWarp();
    if (keep) {
      const int to = kept + CountBits(quad & ((1u << t) - 1u));
      list.z.Store(to, z);
      list.key.Store(to, key);
    }
    // No barrier: what the next round reads lies behind all that has been written.
    kept += CountBits(quad);
  }
  return kept;
}

}  // namespace tsallis::cuda::inline TSALLIS_SIDE
