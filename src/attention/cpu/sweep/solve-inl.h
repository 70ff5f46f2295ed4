// Solves a block's lists: bounds, exact scores, thresholds, supports. Included once per instruction
// set.
#if defined(TSALLIS_ATTENTION_CPU_SWEEP_SOLVE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TSALLIS_ATTENTION_CPU_SWEEP_SOLVE_INL_H_
#undef TSALLIS_ATTENTION_CPU_SWEEP_SOLVE_INL_H_
#else
#define TSALLIS_ATTENTION_CPU_SWEEP_SOLVE_INL_H_
#endif

#include "attention/cpu/sweep/lists-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tsallis {
namespace HWY_NAMESPACE {

// Drops the entries of a settled list below `least`.
template <class Engine, ScoreEngine kEngine>
void BlockSweep<Engine, kEngine>::KeepAbove(std::int64_t r, float least) {
  SweepScratch::Row& row = s_.rows[r];
  float* z = s_.list_z.get() + r * s_.list_stride;
  std::uint32_t* key = s_.list_key.get() + r * s_.list_stride;
  const VF limit = hn::Set(DF(), least);
  row.count =
      static_cast<std::int64_t>(KeepEntries(key, z, z, static_cast<std::size_t>(row.count),
                                            [&](VF v) HWY_ATTR { return hn::Ge(v, limit); }));
  row.settled = row.count;
}

// Solves the row's list so far for a lower bound of its threshold, and drops what lies below it.
template <class Engine, ScoreEngine kEngine>
void BlockSweep<Engine, kEngine>::Raise(std::int64_t r) {
  Settle(r);
  SweepScratch::Row& row = s_.rows[r];
  const float* z = s_.list_z.get() + r * s_.list_stride;
  const auto n = static_cast<std::size_t>(row.count);
  const float top = RowMaximum(z, n);
  double tau = -1.0;
  WithPower(head_.alpha - 1.0, [&](const auto& power) HWY_ATTR {
    const EntmaxSolver solver(power, top, 1.0);
    for (int step = 0; step < 8; ++step) {
      if (solver.Step(z, n, &tau) < 1.01) break;
    }
  });
  const float bound = static_cast<float>(tau + static_cast<double>(top)) - row.over - row.under -
                      kSlack * (1.0f + std::abs(top));
  if (bound > row.bound) {
    SetBound(r, bound);
    row.guessed = false;  // safe from here on, and nothing at or above it was missed
  }
  KeepAbove(r, row.bound);
  row.raise_at = HWY_MIN(s_.list_capacity, HWY_MAX(kFirstRaise, 2 * row.count));
  if (row.count > s_.list_capacity * 3 / 4) {
    row.dense = true;
    row.Clear();
    Retire(r);
  }
}

// Replaces screened scores by float32 products of the inputs: entries [begin, end) of a list.
template <class Engine, ScoreEngine kEngine>
void BlockSweep<Engine, kEngine>::Rescore(std::int64_t r, std::int64_t begin, std::int64_t end) {
  const std::int64_t at = r * s_.list_stride + begin;
  const HeadRows keys = KeyRows(params_, *head_.sequence, KvHead(params_, head_.h), keys_.first);
  GatherDot(keys, s_.list_key.get() + at, static_cast<std::size_t>(end - begin),
            s_.query_rows.get() + r * dim_, params_.head_dim, s_.list_z.get() + at);
}

// The same for whole lists of some rows.
template <class Engine, ScoreEngine kEngine>
void BlockSweep<Engine, kEngine>::Rescore(const std::int64_t* rows, std::size_t count) {
  KeySpans spans;
  std::int64_t entries = 0;
  for (std::size_t i = 0; i < count; ++i) {
    entries += s_.rows[rows[i]].count;
    spans.Add(rows[i], s_.list_key.get() + rows[i] * s_.list_stride,
              static_cast<std::size_t>(s_.rows[rows[i]].count));
  }
  const std::int64_t bytes = params_.head_dim * static_cast<std::int64_t>(SizeOf(params_.k.dtype));
  spans.ForEach(ShareKeys(entries, keys_.count), keys_.count, bytes,
                [&](std::int64_t r, std::int64_t begin, std::int64_t end)
                    HWY_ATTR { Rescore(r, begin, end); });
  for (std::size_t i = 0; i < count; ++i) {
    s_.rows[rows[i]].settled = 0;
    Settle(rows[i], 0.0f);
  }
}

// Puts the sink's entry behind those of a settled list's keys.
template <class Engine, ScoreEngine kEngine>
void BlockSweep<Engine, kEngine>::AddSink(std::int64_t r) {
  if (sink_ == -kInfinityF) return;
  SweepScratch::Row& row = s_.rows[r];
  const std::int64_t at = r * s_.list_stride + row.count;
  s_.list_z[at] = sink_;
  s_.list_key[at] = kSinkKey;
  row.settled = ++row.count;
}

// Finds the maximum of a settled list and pads it to whole vectors.
template <class Engine, ScoreEngine kEngine>
void BlockSweep<Engine, kEngine>::MeasureList(std::int64_t r) {
  const DF d;
  SweepScratch::Row& row = s_.rows[r];
  float* z = s_.list_z.get() + r * s_.list_stride;
  row.maximum = RowMaximum(z, static_cast<std::size_t>(row.count));
  hn::StoreU(hn::Set(d, -kInfinityF), d, z + row.count);
}

// Whether a row's list may hold its support. False: the row must be swept again, or is dense.
template <class Engine, ScoreEngine kEngine>
bool BlockSweep<Engine, kEngine>::Check(std::int64_t r) {
  SweepScratch::Row& row = s_.rows[r];
  row.guess = row.guessed ? row.bound : -kInfinityF;
  if (approximate_ && row.count > 32) {
    // Fewer to compute again. Drops what cannot be in the support, and all that lies below a guess.
    Raise(r);
    if (row.dense) return false;
  }
  if (row.count > 0 || (!row.guessed && sink_ != -kInfinityF)) return true;
  // The guess lay above all entries.
  row.guessed = false;
  row.raise_at = kFirstRaise;
  SetBound(r, LeastBound(row));
  return false;
}

// Makes a row's list of exact scores ready to be solved: z, padded to whole vectors, with its
// maximum.
template <class Engine, ScoreEngine kEngine>
void BlockSweep<Engine, kEngine>::Prepare(std::int64_t r) {
  SweepScratch::Row& row = s_.rows[r];
  if (!approximate_) Settle(r);
  AddSink(r);
  MeasureList(r);
  // Every bound that was set is below the threshold, or was guessed to be: a better start than -1.
  const float start = row.bound - row.maximum;
  row.tau = start > -1.0f && start < -1e-3f ? start : -1.0;
}

// Brings tau, relative to the maximum, close to the root for a few rows together: one row's step
// waits for its sums, its root and its quotient, so that four rows take hardly longer than one.
template <class Engine, ScoreEngine kEngine>
void BlockSweep<Engine, kEngine>::Approach(const std::int64_t* rows, std::size_t count) {
  const DF d;
  const std::size_t lanes = hn::Lanes(d);
  const VF zero = hn::Zero(d), one = hn::Set(d, 1.0f);
  const VF least = hn::Set(d, -1.0f), most = hn::Set(d, -1e-5f);
  WithPower(head_.alpha - 1.0, [&](const auto& power) HWY_ATTR {
    VF tau[kSolveRows];
    for (std::size_t i = 0; i < count; ++i) {
      tau[i] = hn::Set(d, static_cast<float>(s_.rows[rows[i]].tau));
    }
    for (int step = 0; step < 8; ++step) {
      VF farthest = zero;
      for (std::size_t i = 0; i < count; ++i) {
        const SweepScratch::Row& row = s_.rows[rows[i]];
        const float* HWY_RESTRICT z = s_.list_z.get() + rows[i] * s_.list_stride;
        const VF top = hn::Set(d, row.maximum);
        VF sum = zero, slope = zero;
        for (std::size_t j = 0; j < static_cast<std::size_t>(row.count); j += lanes) {
          const VF u = hn::Max(hn::Sub(hn::Sub(hn::LoadU(d, z + j), top), tau[i]), zero);
          const VF p = power.Value(d, u);
          sum = hn::Add(sum, p);
          slope = hn::Add(slope, power.Slope(d, u, p));
        }
        sum = hn::SumOfLanes(d, sum);
        slope = hn::SumOfLanes(d, slope);
        farthest = hn::Max(farthest, hn::Abs(hn::Sub(sum, one)));
        tau[i] = hn::Min(hn::Max(hn::Add(tau[i], NewtonStep(power, sum, slope)), least), most);
      }
      // The error of the next sum is about the square of this one's.
      if (hn::GetLane(farthest) < 2e-4f) break;
    }
    for (std::size_t i = 0; i < count; ++i) {
      s_.rows[rows[i]].tau = static_cast<double>(hn::GetLane(tau[i]));
    }
  });
}

// False: the row must be swept again, from a bound that is set and safe.
template <class Engine, ScoreEngine kEngine>
bool BlockSweep<Engine, kEngine>::SolveRow(std::int64_t r) {
  SweepScratch::Row& row = s_.rows[r];
  const float* z = s_.list_z.get() + r * s_.list_stride;
  row.tau =
      WithPower(head_.alpha - 1.0,
                [&](const auto& power) HWY_ATTR {
                  return EntmaxSolver(power, row.maximum, 1.0)
                      .Finish(z, static_cast<std::size_t>(row.count), row.tau, s_.weights.get());
                }) +
      static_cast<double>(row.maximum);
  if (row.guess == -kInfinityF) return true;
  const auto tau = static_cast<float>(row.tau);
  const float slack = kSlack * (1.0f + std::abs(tau));
  if (row.guess + row.under + slack <= tau) return true;
  // Too high a guess. The threshold of a part of the row is a safe bound for all of it.
  row.guessed = false;
  row.raise_at = HWY_MIN(s_.list_capacity, HWY_MAX(kFirstRaise, 2 * row.count));
  SetBound(r, tau - row.under - slack);
  return false;
}

template <class Engine, ScoreEngine kEngine>
template <class Emit>
void BlockSweep<Engine, kEngine>::Solve(const Emit& emit) {
  for (bool again = true; again;) {
    again = false;
    const auto sweep_again = [&](std::int64_t r) {
      s_.rows[r].Clear();
      again = true;
    };
    std::int64_t rows[kBlockRows] = {};
    std::size_t count = 0;
    for (std::int64_t r = 0; r < count_; ++r) {
      if (!s_.rows[r].active) continue;
      if (Check(r)) {
        rows[count++] = r;
      } else if (!s_.rows[r].dense) {
        sweep_again(r);
      }
    }
    if (approximate_) Rescore(rows, count);
    for (std::size_t i = 0; i < count; i += kSolveRows) {
      const std::int64_t* few = rows + i;
      const std::size_t here = HWY_MIN(kSolveRows, count - i);
      for (std::size_t k = 0; k < here; ++k) Prepare(few[k]);
      Approach(few, here);
      for (std::size_t k = 0; k < here; ++k) {
        if (SolveRow(few[k])) {
          emit(few[k], KeepSupport(few[k]));
          Retire(few[k]);
        } else {
          sweep_again(few[k]);
        }
      }
    }
    if (again) SweepAgain();
  }
}

template <class Engine, ScoreEngine kEngine>
template <class Emit>
void BlockSweep<Engine, kEngine>::Recall(const Emit& emit) {
  std::int64_t rows[kBlockRows] = {};
  std::size_t count = 0;
  for (std::int64_t r = 0; r < count_; ++r) {
    if (s_.rows[r].active) rows[count++] = r;
  }
  if (approximate_) Rescore(rows, count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::int64_t r = rows[i];
    if (!approximate_) Settle(r);
    AddSink(r);
    SweepScratch::Row& row = s_.rows[r];
    row.maximum =
        RowMaximum(s_.list_z.get() + r * s_.list_stride, static_cast<std::size_t>(row.count));
    emit(r, KeepSupport(r));
    Retire(r);
  }
}

// Turns a row's list into its support and weights. They depend on the scores, tau and the maximum
// alone, not on what else was listed: a row that is found again gets the same bits.
template <class Engine, ScoreEngine kEngine>
std::size_t BlockSweep<Engine, kEngine>::KeepSupport(std::int64_t r) {
  const SweepScratch::Row& row = s_.rows[r];
  float* z = s_.list_z.get() + r * s_.list_stride;
  std::uint32_t* key = s_.list_key.get() + r * s_.list_stride;
  float* p = s_.weights.get();
  const auto n = static_cast<std::size_t>(row.count);
  const DF d;
  const std::size_t lanes = hn::Lanes(d);
  const SplitThreshold tau(row.tau - static_cast<double>(row.maximum));
  const VF top = hn::Set(d, row.maximum), high = hn::Set(d, tau.high), low = hn::Set(d, tau.low);
  WithPower(head_.alpha - 1.0, [&](const auto& power) HWY_ATTR {
    for (std::size_t i = 0; i < n; i += lanes) {
      const VF above = hn::Sub(hn::Sub(hn::Sub(hn::LoadU(d, z + i), top), high), low);
      hn::StoreU(power.Value(d, hn::Max(above, hn::Zero(d))), d, p + i);
    }
  });
  std::size_t support =
      KeepEntries(key, p, z, n, [&](VF v) HWY_ATTR { return hn::Gt(v, hn::Zero(d)); });
  double sum, unused;
  SumTwo(z, support, 0.0f, &sum, &unused, [](VF v, VF& a, VF&) HWY_ATTR { a = hn::Add(a, v); });
  const VF factor = hn::Set(d, static_cast<float>(1.0 / sum));
  for (std::size_t i = 0; i < support; i += lanes) {
    hn::StoreU(hn::Mul(hn::LoadU(d, z + i), factor), d, z + i);
  }
  if (support > 0 && key[support - 1] == kSinkKey) --support;
  return support;
}

template <class Engine, ScoreEngine kEngine>
float BlockSweep<Engine, kEngine>::ScoreOf(std::int64_t r, std::uint32_t key) const {
  const SweepScratch::Row& row = s_.rows[r];
  const HeadRows keys = KeyRows(params_, *head_.sequence, KvHead(params_, head_.h), keys_.first);
  float product = 0.0f;
  GatherDot(keys, &key, 1, s_.query_rows.get() + r * dim_, params_.head_dim, &product);
  return static_cast<float>(head_.score_terms.Score(row.score_factor * static_cast<double>(product),
                                                    row.position - static_cast<std::int64_t>(key)));
}

// Rows that are still active, side by side in as few units as hold them.
template <class Engine, ScoreEngine kEngine>
void BlockSweep<Engine, kEngine>::SweepAgain() {
  float bounds[kBlockRows];
  std::int64_t slot = 0;
  for (std::int64_t r = 0; r < count_; ++r) {
    if (!s_.rows[r].active) continue;
    bounds[slot] = s_.bounds[s_.slot_of_row[r]];
    s_.row_of_slot[slot] = static_cast<std::uint8_t>(r);
    PackQuery(kEngine, s_.query_rows.get() + r * dim_, keys_.scale, dim_, slot % kUnitRows,
              s_.queries.get() + static_cast<std::size_t>(slot / kUnitRows) * unit_bytes_);
    ++slot;
  }
  // Slots of a unit that stay empty compute what they held; their bound hides it.
  s_.slots = (slot + kPairRows - 1) / kPairRows * kPairRows;
  for (std::int64_t i = 0; i < s_.slots; ++i) {
    s_.bounds[i] = i < slot ? bounds[i] : kInfinityF;
    if (i < slot) s_.slot_of_row[s_.row_of_slot[i]] = static_cast<std::uint8_t>(i);
  }
  Sweep();
}

}  // namespace HWY_NAMESPACE
}  // namespace tsallis
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
