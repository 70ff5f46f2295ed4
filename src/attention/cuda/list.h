// The list of a row in shared memory, and its threshold.
#pragma once

#include <cmath>
#include <cstdint>

#include "attention/cuda/call.h"

namespace tsallis::cuda {
inline namespace TSALLIS_SIDE {

// Relative errors that a bound allows for: of z as float32, and of a solution.
inline constexpr float kScoreSlack = 4e-6f, kSolveSlack = 1e-5f;

// A threshold as its distance below the largest z: tau = peak - top, 0 < top <= 1.
struct Threshold {
  float peak = -kInfinity, top = 1.0f;
};

// A row's list of kList places. Its quad's lanes have a quarter each: place s belongs to lane s %
// 4, which fills its own one after the other, so that nothing is shared while keys pass. A lane's
// places lie kStride words apart, so that each lane of a warp has a bank of its own. z = unit *
// value.
template <int kStride>
struct RowList {
  Shared<float> value;
  Shared<int> key;
  float unit = 1.0f;

  TSALLIS_DEVICE static int At(int place) { return place / 4 * kStride + place % 4; }
  // The lane's entry i.
  TSALLIS_DEVICE float Z(int i) const { return unit * value.Load(i * kStride + Lane() % 4); }
};

// The threshold of a list of which the lane has `mine` entries, by Newton's method from below; sums
// have one order. The warp calls it, each quad with its own list. sink: one more z; -inf: none.
// bound: a z that the threshold exceeds. A peak that is not finite: the list has no threshold.
template <int kStride>
TSALLIS_RARE Threshold SolveList(const RowList<kStride> list, int mine, float sink, float bound,
                                 float alpha, float power) {
  Threshold threshold;
  TSALLIS_LOOP
  for (int i = 0; i < mine; ++i) threshold.peak = MaxOrNaN(threshold.peak, list.Z(i));
  threshold.peak = MaxOrNaN(QuadMax(threshold.peak), sink);
  const float peak = threshold.peak;
  // A little more than the bound's distance, since both are rounded.
  const float start = (peak - bound) * 1.001f + 1e-5f * fabsf(peak);
  threshold.top = start < 1.0f ? start : 1.0f;
  // Sums of the weights and slopes, of four entries at once.
  const auto newton = [&](const auto& add) {
    for (bool moves = true; Any(moves);) {
      float sum = 0.0f, slope = 0.0f;
      if (Lane() % 4 == 0) add(fmaxf(threshold.top - (peak - sink), 0.0f), sum, slope);
      TSALLIS_LOOP
      for (int i = 0; i < mine; i += 4) {
        TSALLIS_UNROLL
        for (int k = 0; k < 4; ++k) {
          const float z = i + k < mine ? list.Z(i + k) : -kInfinity;
          add(fmaxf(threshold.top - (peak - z), 0.0f), sum, slope);
        }
      }
      sum = QuadSum(sum);
      slope = QuadSum(slope) * power;
      const float next = threshold.top - (sum - 1.0f) / slope;
      moves = next < threshold.top;
      if (moves) threshold.top = next;
    }
  };
  if (alpha == 1.5f) {
    newton([](float x, float& sum, float& slope) {
      sum = fmaf(x, x, sum);
      slope += x;
    });
  } else {
    newton([&](float x, float& sum, float& slope) {
      if (!(x > 0.0f)) return;
      const Weight weight = Weight::Of(x, alpha, power);
      sum += weight.p;
      slope += weight.u;
    });
  }
  return threshold;
}

// Keeps the entries of the quad's list whose z exceeds `bound`, spread evenly over its lanes; the
// number of them. The warp calls it.
template <int kStride>
TSALLIS_DEVICE int CompactList(const RowList<kStride>& list, int mine, float bound) {
  const int lane = Lane(), t = lane % 4;
  int kept = 0;
  TSALLIS_LOOP
  for (int i = 0; Any(i < mine); ++i) {
    const bool in = i < mine;
    const float value = in ? list.value.Load(i * kStride + t) : 0.0f;
    const int key = in ? list.key.Load(i * kStride + t) : 0;
    const bool keep = in && list.unit * value > bound;
    const std::uint32_t quad = Ballot(keep) >> (lane & 28) & 15u;
    SyncWarp();
    if (keep) {
      const int to = list.At(kept + CountBits(quad & ((1u << t) - 1u)));
      list.value.Store(to, value);
      list.key.Store(to, key);
    }
    // No barrier: what the next round reads lies behind all that has been written.
    kept += CountBits(quad);
  }
  return kept;
}

}  // namespace TSALLIS_SIDE
}  // namespace tsallis::cuda
