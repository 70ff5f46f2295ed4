// Entmax of four short rows at once. Included once per instruction set.
//
// A row of 64 is four vectors: summing across their lanes and waiting for the sum costs more than
// the arithmetic. Here lane i of every 128-bit block belongs to row i, after 4 x 4 transposes
// within the blocks, so that sums stay in their lanes until the blocks are added, and one chain of
// Newton steps serves four rows: 169 -> 60 ns a row at n = 64, alpha = 1.5.
#if defined(TSALLIS_SIMPLEX_SHORT_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TSALLIS_SIMPLEX_SHORT_ROWS_INL_H_
#undef TSALLIS_SIMPLEX_SHORT_ROWS_INL_H_
#else
#define TSALLIS_SIMPLEX_SHORT_ROWS_INL_H_
#endif

#include "simplex/entmax-inl.h"
#include "simplex/scratch.h"
#include "simplex/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tsallis {
namespace HWY_NAMESPACE {

// Vectors of unknown length have no fixed blocks; scalars have none.
#if HWY_HAVE_SCALABLE || HWY_TARGET == HWY_SCALAR
constexpr bool kGroupsRows = false;

template <class Power>
bool EntmaxFourRows(const Power&, const float* const*, std::size_t, double, float* const*, float*,
                    float*, double*) {
  return false;
}
#else
constexpr bool kGroupsRows = true;

// Within each 128-bit block, lane i of v_k becomes lane k of v_i.
HWY_INLINE void TransposeBlocks(VF& v0, VF& v1, VF& v2, VF& v3) {
  const DF d;
  const hn::Repartition<std::uint64_t, DF> dd;
  const auto low01 = hn::BitCast(dd, hn::InterleaveLower(d, v0, v1));
  const auto low23 = hn::BitCast(dd, hn::InterleaveLower(d, v2, v3));
  const auto high01 = hn::BitCast(dd, hn::InterleaveUpper(d, v0, v1));
  const auto high23 = hn::BitCast(dd, hn::InterleaveUpper(d, v2, v3));
  v0 = hn::BitCast(d, hn::InterleaveLower(dd, low01, low23));
  v1 = hn::BitCast(d, hn::InterleaveUpper(dd, low01, low23));
  v2 = hn::BitCast(d, hn::InterleaveLower(dd, high01, high23));
  v3 = hn::BitCast(d, hn::InterleaveUpper(dd, high01, high23));
}

// Combines the blocks; all of them hold the result.
template <class Combine>
HWY_INLINE VF AcrossBlocks(VF v, const Combine& combine) {
  const DF d;
  if (hn::MaxLanes(d) >= 8) v = combine(v, hn::ReverseBlocks(d, v));
#if HWY_TARGET <= HWY_AVX3
  v = combine(v, hn::SwapAdjacentBlocks(v));
#endif
  return v;
}

// x[k], y[k]: [n] for k < 4, n <= kShortRow; y may be x. work: [8 * (kShortRow + lanes)], aligned.
// Writes y, maximum[4] and tau[4] (relative to the maximum) and returns true, or touches nothing
// and returns false: a row holds NaN or no finite entry, or float did not converge.
template <class Power>
HWY_INLINE bool EntmaxFourRows(const Power& power, const float* const* x, std::size_t n,
                               double scale, float* const* y, float* HWY_RESTRICT work,
                               float* maximum, double* tau) {
  const DF d;
  const std::size_t lanes = hn::Lanes(d);
  const VF zero = hn::Zero(d), one = hn::Set(d, 1.0f);
  const auto add = [](VF a, VF b) HWY_ATTR { return hn::Add(a, b); };
  VF top = hn::Set(d, -kInfinityF);
  auto bad = hn::IsNaN(zero);
  std::size_t size = 0;  // floats of `work` in use
  for (std::size_t i = 0; i < n; i += lanes, size += 4 * lanes) {
    const std::size_t count = HWY_MIN(lanes, n - i);
    const auto load = [&](int k) HWY_ATTR {
      return count == lanes ? hn::LoadU(d, x[k] + i) : LoadPart(d, x[k] + i, count, -kInfinityF);
    };
    VF v0 = load(0), v1 = load(1), v2 = load(2), v3 = load(3);
    TransposeBlocks(v0, v1, v2, v3);
    top = hn::Max(top, hn::Max(hn::Max(v0, v1), hn::Max(v2, v3)));
    bad = hn::Or(bad, hn::IsNaN(hn::Add(hn::Add(v0, v1), hn::Add(v2, v3))));
    hn::Store(v0, d, work + size);
    hn::Store(v1, d, work + size + lanes);
    hn::Store(v2, d, work + size + 2 * lanes);
    hn::Store(v3, d, work + size + 3 * lanes);
  }
  top = AcrossBlocks(top, [](VF a, VF b) HWY_ATTR { return hn::Max(a, b); });
  const auto finite = hn::Lt(hn::Abs(top), hn::Set(d, kInfinityF));
  if (!hn::AllFalse(d, bad) || !hn::AllTrue(d, finite)) return false;

  const VF factor = hn::Set(d, static_cast<float>(scale));
  const auto scaled = [&](VF v) HWY_ATTR { return hn::Mul(hn::Sub(v, top), factor); };
  for (std::size_t i = 0; i < size; i += lanes) {
    hn::Store(scaled(hn::Load(d, work + i)), d, work + i);
  }
  float* p = work + size;
  // tau = high + low: see SplitThreshold.
  VF high = hn::Set(d, -1.0f), low = zero;
  // |sum - 1| of the rows at the current tau, with a Newton step for the rows that `moves` then
  // selects. Rows stop on their own account: none depends on its neighbours.
  const auto pass = [&](auto writes, const auto& moves) HWY_ATTR {
    VF s0 = zero, s1 = zero, g0 = zero, g1 = zero;
    for (std::size_t i = 0; i < size; i += 2 * lanes) {
      const VF u0 = hn::Max(hn::Sub(hn::Sub(hn::Load(d, work + i), high), low), zero);
      const VF u1 = hn::Max(hn::Sub(hn::Sub(hn::Load(d, work + i + lanes), high), low), zero);
      const VF p0 = power.Value(d, u0), p1 = power.Value(d, u1);
      s0 = hn::Add(s0, p0);
      s1 = hn::Add(s1, p1);
      g0 = hn::Add(g0, power.Slope(d, u0, p0));
      g1 = hn::Add(g1, power.Slope(d, u1, p1));
      if constexpr (decltype(writes)::value) {
        hn::Store(p0, d, p + i);
        hn::Store(p1, d, p + i + lanes);
      }
    }
    const VF sum = AcrossBlocks(hn::Add(s0, s1), add);
    const VF slope = hn::Max(AcrossBlocks(hn::Add(g0, g1), add), hn::Set(d, 1e-30f));
    const VF error = hn::Abs(hn::Sub(sum, one));
    const auto moving = moves(error);
    const VF step = hn::Add(low, hn::Div(hn::Sub(sum, power.Root(d, sum)), slope));
    const VF next = hn::Add(high, step);
    low = hn::IfThenElse(moving, hn::Sub(step, hn::Sub(next, high)), low);
    high = hn::IfThenElse(moving, next, high);
    return error;
  };

  // As in EntmaxSolver::Solve: the step from within 1e-3 lands, and the pass that writes checks it.
  const VF far = hn::Set(d, 1e-3f), close = hn::Set(d, 2.5e-7f);
  // Starting from the threshold of a few maxima, which saves long rows two passes, costs time here:
  // a pass is bound by the latency of its root and quotient (84 ns a row against 67 at n = 64).
  auto searching = hn::Ge(one, zero);
  for (int steps = 0; !hn::AllFalse(d, searching); ++steps) {
    if (steps == 64) return false;
    const VF error = pass(std::false_type(), [&](VF) HWY_ATTR { return searching; });
    searching = hn::And(searching, hn::Ge(error, far));
  }
  for (int steps = 0;; ++steps) {
    if (steps == 4) return false;
    const auto is_off = [&](VF error) HWY_ATTR { return hn::Gt(error, close); };
    if (!hn::AllFalse(d, is_off(pass(std::true_type(), is_off)))) continue;
    HWY_ALIGN float lane[3][hn::MaxLanes(d)];
    hn::Store(top, d, lane[0]);
    hn::Store(high, d, lane[1]);
    hn::Store(low, d, lane[2]);
    for (int k = 0; k < 4; ++k) {
      maximum[k] = lane[0][k];
      tau[k] = static_cast<double>(lane[1][k]) + lane[2][k];
    }
    break;
  }
  for (std::size_t i = 0; i < n; i += lanes, p += 4 * lanes) {
    VF v0 = hn::Load(d, p), v1 = hn::Load(d, p + lanes);
    VF v2 = hn::Load(d, p + 2 * lanes), v3 = hn::Load(d, p + 3 * lanes);
    TransposeBlocks(v0, v1, v2, v3);
    const std::size_t count = HWY_MIN(lanes, n - i);
    const auto store = [&](VF v, float* to) HWY_ATTR {
      count == lanes ? hn::StoreU(v, d, to + i) : StorePart(d, v, to + i, count);
    };
    store(v0, y[0]);
    store(v1, y[1]);
    store(v2, y[2]);
    store(v3, y[3]);
  }
  return true;
}
#endif  // HWY_HAVE_SCALABLE

}  // namespace HWY_NAMESPACE
}  // namespace tsallis
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
