// One block of queries over all keys of its head. Included once per instruction set.
#if defined(TSALLIS_ATTENTION_CPU_SWEEP_BLOCK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TSALLIS_ATTENTION_CPU_SWEEP_BLOCK_INL_H_
#undef TSALLIS_ATTENTION_CPU_SWEEP_BLOCK_INL_H_
#else
#define TSALLIS_ATTENTION_CPU_SWEEP_BLOCK_INL_H_
#endif

#include <algorithm>

#include "attention/cpu/gather-inl.h"
#include "attention/cpu/sweep/engines-inl.h"
#include "attention/cpu/sweep/pack-inl.h"
#include "attention/cpu/sweep/spans-inl.h"
#include "attention/threshold_guess.h"
#include "simplex/entmax-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tsallis {
namespace HWY_NAMESPACE {

// Relative slack for what float32 rounding may do between a score, its bound and its threshold.
constexpr float kSlack = 4e-6f;
// What a sum of up to 512 products in float32 loses, of the product of the norms.
constexpr float kCentreRounding = 4e-6f;
// The candidates of a row that trigger a first, safe bound.
constexpr std::int64_t kFirstRaise = 96;
// The least number where a threshold was guessed.
constexpr std::int64_t kLeastListed = 256;
// Tiles around a row, the last its own, that seed its bound.
constexpr std::int64_t kSeedTiles = 3;
// Keys from which on a row of a head like that is seeded, and a pilot row to find out: shorter ones
// cost more than they tell.
constexpr std::int64_t kLeastSeeded = 512, kLeastPilotSeeded = 1280;
// Rows that are solved together.
constexpr std::size_t kSolveRows = 4;

template <class Engine, ScoreEngine kEngine>
class BlockSweep {
 public:
  BlockSweep(const HeadContext& head, SweepScratch& scratch)
      : head_(head),
        params_(*head.params),
        keys_(*head.keys),
        s_(scratch),
        dim_(PackedDim(kEngine, params_.head_dim)),
        unit_bytes_(UnitBytes(kEngine, params_.head_dim)),
        approximate_(!ScoresAreExact(kEngine, params_.q.dtype)),
        has_terms_(head.terms.any()),
        by_distance_(head.by_distance()),
        sink_(head.sink()) {
    if (!IsByteEngine(kEngine)) return;
    const auto n = static_cast<std::size_t>(dim_);
    centre_norm_ = std::sqrt(DotFloats(keys_.centre, keys_.centre, n));
  }

  // Rows [q_begin, q_begin + count), count <= kBlockRows: packs the queries and sets up the rows.
  void Begin(std::int64_t q_begin, std::int64_t count);

  // Bounds from a guess; rows that cannot have one start from nothing.
  void Guess(const HeadGuess& guess);

  // Raises bounds to the thresholds of the keys that a head's rows most often keep: those around
  // them and, with `first`, the first ones. Rows that see fewer than `least` keys stay as they are.
  void Seed(bool first, std::int64_t least);

  // Lists every candidate of the active rows.
  void Sweep();

  // Entries of all active rows.
  std::int64_t Listed() const {
    std::int64_t entries = 0;
    for (std::int64_t r = 0; r < count_; ++r) {
      if (s_.rows[r].active) entries += s_.rows[r].count;
    }
    return entries;
  }

  // Solves all active rows and calls emit(r, support) for each as it is done: rows[r].tau is the
  // threshold, and the row's list holds its support: list_key ascending, list_z the weights.
  // Rows whose guess was too high are swept again first.
  template <class Emit>
  void Solve(const Emit& emit);

  // Solves rows whose tau is known and whose bound follows from it (KnownThreshold).
  template <class Emit>
  void Recall(const Emit& emit);

  // The score s of a row's query and a key, terms included; z / (alpha - 1) would round a 0 away.
  float ScoreOf(std::int64_t r, std::uint32_t key) const;

  // Sets bounds for thresholds that are known (z units); rows without support get none.
  void KnownThreshold(std::int64_t r, double tau) {
    SweepScratch::Row& row = s_.rows[r];
    const auto t = static_cast<float>(tau);
    row.tau = tau;
    row.raise_at = s_.list_stride;  // never
    SetBound(r, t - row.under - kSlack * (1.0f + std::abs(t)));
  }
  // No support, or none that is wanted.
  void Retire(std::int64_t r) {
    s_.rows[r].active = false;
    s_.bounds[s_.slot_of_row[r]] = kInfinityF;
  }

 private:
  using Scores = typename Engine::Scores;
  static_assert(sizeof(Scores) <= kUnitScoreBytes);

  // Those of a pair: [2]. Two pairs have room.
  Scores* PairScores(int pair) const {
    return reinterpret_cast<Scores*>(s_.scores.get()) + static_cast<std::ptrdiff_t>(2 * pair);
  }
  // A bound on raw scores as one on the engine's, rounded down: what is listed needlessly costs
  // little, what is missed costs the answer.
  static float EngineBound(const SweepScratch::Row& row, float raw) {
    if (!std::isfinite(raw)) return -kInfinityF;
    return raw - row.centre - kSlack * (std::abs(raw) + std::abs(row.centre));
  }
  void SetBound(std::int64_t r, float z) {
    auto& row = s_.rows[r];
    row.bound = z;
    float raw = z / row.factor;
    if (has_terms_ && !by_distance_ && std::isfinite(z)) {  // a soft cap alone
      raw = static_cast<float>(head_.terms.LeastProduct(z, 0, 0, 4.0 * kSlack) /
                               static_cast<double>(row.factor));
    }
    s_.bounds[s_.slot_of_row[r]] = EngineBound(row, raw);
  }
  // A bound that needs no key: the threshold of the sink alone.
  float LeastBound(const SweepScratch::Row& row) const {
    return sink_ - 1.0f - row.under - kSlack * (1.0f + std::abs(sink_));
  }
  void AddSink(std::int64_t r);
  std::size_t KeepSupport(std::int64_t r);
  struct Reach {
    std::int64_t lo = 0, hi = 0;  // keys that a pair's rows with a bound see; lo >= hi: none
  };
  Reach ReachOf(std::int64_t pair) const;
  void SeedRows(const std::int64_t* rows, std::size_t count);
  void MeasureList(std::int64_t r);
  void SweepAgain();
  void LimitByAlibi(SweepScratch::Row& row, float largest);
  const float* TileBounds(std::int64_t pair, std::int64_t tile, int buffer);
  void Extract(const Scores* scores, const float* bounds, const std::uint16_t* masks,
               std::int64_t row0, std::int64_t tile);
  float ZOf(const SweepScratch::Row& row, std::int64_t key, float raw) const;
  void Settle(std::int64_t r) { Settle(r, s_.rows[r].centre); }
  void Settle(std::int64_t r, float centre);
  void KeepAbove(std::int64_t r, float least);
  void Raise(std::int64_t r);
  void Rescore(std::int64_t r, std::int64_t begin, std::int64_t end);
  void Rescore(const std::int64_t* rows, std::size_t count);
  bool Check(std::int64_t r);
  void Prepare(std::int64_t r);
  void Approach(const std::int64_t* rows, std::size_t count);
  bool SolveRow(std::int64_t r);

  const HeadContext head_;
  const AttentionParams& params_;
  const PackedKeys& keys_;
  SweepScratch& s_;
  const std::int64_t dim_;
  const std::size_t unit_bytes_;
  const bool approximate_;  // listed scores are not the products of the inputs
  const bool has_terms_, by_distance_;
  const float sink_;  // in z, an entry of every row that sees a key; -inf: none
  float centre_norm_ = 0.0f;
  std::int64_t count_ = 0;
};

template <class Engine, ScoreEngine kEngine>
void BlockSweep<Engine, kEngine>::Begin(std::int64_t q_begin, std::int64_t count) {
  count_ = count;
  const Sequence& sequence = *head_.sequence;
  const std::int64_t d = params_.head_dim, b = sequence.array_batch, h = head_.h;
  const std::int64_t padded = (count + kPairRows - 1) / kPairRows * kPairRows;
  s_.slots = padded;
  for (std::int64_t r = 0; r < padded; ++r) {
    SweepScratch::Row& row = s_.rows[r];
    row = {};
    s_.row_of_slot[r] = s_.slot_of_row[r] = static_cast<std::uint8_t>(r);
    s_.bounds[r] = kInfinityF;
    float* values = s_.query_rows.get() + r * dim_;
    std::memset(values, 0, sizeof(float) * static_cast<std::size_t>(dim_));
    std::byte* unit = s_.queries.get() + static_cast<std::size_t>(r / kUnitRows) * unit_bytes_;
    if (r >= count) {
      PackQuery(kEngine, values, keys_.scale, dim_, r % kUnitRows, unit);
      continue;
    }
    const std::int64_t q_row = q_begin + r;
    const Span visible = sequence.VisibleKeys(params_.mask, q_row);
    row.lo = visible.begin - keys_.first;
    row.hi = visible.end - keys_.first;
    row.position = q_row + sequence.shift - keys_.first;
    double factor = RowFactor(params_, sequence, h, q_row);
    LoadFloats(HeadRows::Of(params_.q, b, h), q_row, d, values);
    if (factor < 0.0) {  // the filter looks for large products
      factor = -factor;
      for (std::int64_t x = 0; x < d; ++x) values[x] = -values[x];
    }
    row.score_factor = factor;
    row.exact_factor = (head_.alpha - 1.0) * factor;
    row.factor = static_cast<float>(row.exact_factor);
    const float squared = DotFloats(values, values, static_cast<std::size_t>(dim_));
    const PackedQuery packed = PackQuery(kEngine, values, keys_.scale, dim_, r % kUnitRows, unit);
    if (row.hi <= row.lo) continue;
    row.active = true;
    const float norm = std::sqrt(squared);
    const float reach = norm * keys_.largest_norm * row.factor;
    // No entry can exceed `largest`; scores beyond it, or NaN, are not for a sweep.
    if (!(squared < kLargestNorm * kLargestNorm) || !(reach < 1e6f) || !(row.factor > 1e-30f) ||
        !std::isfinite(head_.terms.slope) || !keys_.usable || !(sink_ < 1e6f)) {
      row.dense = true;
      row.active = false;
      continue;
    }
    if (approximate_) {
      const float shift = static_cast<float>(head_.terms.Size(0.0, 0));
      float error = 1.001f * row.factor *
                        (packed.norm * keys_.largest_error +
                         packed.lost * (keys_.packed_norm + keys_.largest_error)) +
                    1e-6f * (shift + reach + row.factor * packed.norm * keys_.packed_norm);
      const std::int64_t farthest =
          HWY_MAX(std::abs(row.position - row.lo), std::abs(row.position - row.hi + 1));
      const auto lipschitz = static_cast<float>(std::max(1.0, head_.terms.Lipschitz(farthest)));
      error *= lipschitz;
      if (IsByteEngine(kEngine)) {  // listed scores are upper bounds, but for a rounded <q, centre>
        row.centre = DotFloats(values, keys_.centre, static_cast<std::size_t>(dim_));
        row.under = lipschitz * kCentreRounding * row.factor * norm * centre_norm_;
        const std::int64_t steps = (2 + SumSlack(kEngine, dim_)) * SumUnit(kEngine, dim_);
        row.over =
            row.under + 2.0f * error +
            lipschitz * static_cast<float>(steps) * packed.step * keys_.largest_step * row.factor;
      } else {
        row.under = row.over = error;
      }
    }
    if (head_.terms.slope > 0.0 && !head_.terms.distances.any()) LimitByAlibi(row, reach);
    row.raise_at = kFirstRaise;
    SetBound(r, LeastBound(row));
  }
}

// With z in +-largest less slope d, an entry further than this from the nearest visible key lies
// more than 1 below the maximum, and the threshold does not.
template <class Engine, ScoreEngine kEngine>
void BlockSweep<Engine, kEngine>::LimitByAlibi(SweepScratch::Row& row, float largest) {
  const std::int64_t nearest = row.position < row.lo
                                   ? row.lo - row.position
                                   : (row.position >= row.hi ? row.position - row.hi + 1 : 0);
  const double width =
      (2.0 * largest + 1.0) * 1.0001 / head_.terms.slope + static_cast<double>(nearest) + 1.0;
  if (width > 1e15) return;
  const auto reach = static_cast<std::int64_t>(width);
  row.lo = HWY_MAX(row.lo, row.position - reach);
  row.hi = HWY_MIN(row.hi, row.position + reach + 1);
}

template <class Engine, ScoreEngine kEngine>
void BlockSweep<Engine, kEngine>::Guess(const HeadGuess& guess) {
  const std::int64_t d = params_.head_dim;
  for (std::int64_t r0 = 0; r0 < count_; r0 += kUnitRows) {
    float variance[kUnitRows] = {};
    for (std::int64_t tile = 0; tile < Tiles(d); ++tile) {
      Engine::Unit(
          s_.queries.get() + static_cast<std::size_t>(r0 / kUnitRows) * unit_bytes_,
          keys_.covariance + static_cast<std::size_t>(tile) * TileBytes(kEngine, params_.head_dim),
          dim_, PairScores(0), {});
      // q^T C q, 64 components of C q at a time.
      HWY_ALIGN float row_scores[kTileKeys];
      for (std::int64_t r = 0; r < kUnitRows; ++r) {
        const float* q = s_.query_rows.get() + (r0 + r) * dim_ + tile * kTileKeys;
        PairScores(0)->Row(static_cast<std::size_t>(r), row_scores);
        variance[r] += DotFloats(
            q, row_scores, static_cast<std::size_t>(HWY_MIN(kTileKeys, d - tile * kTileKeys)));
      }
    }
    for (std::int64_t r = r0; r < HWY_MIN(r0 + kUnitRows, count_); ++r) {
      SweepScratch::Row& row = s_.rows[r];
      if (!row.active || row.hi - row.lo < kLeastGuessed) continue;
      row.mean = row.factor * DotFloats(s_.query_rows.get() + r * dim_, keys_.mean,
                                        static_cast<std::size_t>(dim_));
      row.sigma = row.factor * std::sqrt(HWY_MAX(variance[r - r0], 0.0f));
      if (!(row.sigma > 1e-6f) || !std::isfinite(row.mean)) continue;
      row.curve = head_.curve->At(FastLog(static_cast<float>(row.hi - row.lo)) +
                                  head_.curve->exponent() * FastLog(row.sigma));
      if (!guess.usable) continue;
      row.guessed = true;
      SetBound(r, row.mean + row.sigma * (row.curve + guess.shift - kGuessMargin * guess.spread) -
                      row.under);
      // A head whose thresholds do not follow their scores' moments has low guesses, and long
      // lists: a list of some times what is expected to stay says so.
      const double expected = guess.kept * static_cast<double>(row.hi - row.lo);
      row.raise_at = HWY_MIN(s_.list_capacity,
                             HWY_MAX(kLeastListed, static_cast<std::int64_t>(4.0 * expected)));
    }
  }
}

template <class Engine, ScoreEngine kEngine>
auto BlockSweep<Engine, kEngine>::ReachOf(std::int64_t pair) const -> Reach {
  Reach reach{keys_.count, 0};
  for (std::int64_t slot = pair * kPairRows; slot < (pair + 1) * kPairRows; ++slot) {
    if (s_.bounds[slot] == kInfinityF) continue;
    const SweepScratch::Row& row = s_.rows[s_.row_of_slot[slot]];
    reach.lo = HWY_MIN(reach.lo, row.lo);
    reach.hi = HWY_MAX(reach.hi, row.hi);
  }
  return reach;
}

template <class Engine, ScoreEngine kEngine>
void BlockSweep<Engine, kEngine>::Sweep() {
  const std::int64_t pairs = (s_.slots + kPairRows - 1) / kPairRows;
  Reach reach[kBlockRows / kPairRows];
  std::int64_t first = keys_.count, last = 0;
  for (std::int64_t pair = 0; pair < pairs; ++pair) {
    reach[pair] = ReachOf(pair);
    first = HWY_MIN(first, reach[pair].lo);
    last = HWY_MAX(last, reach[pair].hi);
  }
  const std::size_t tile_bytes = TileBytes(kEngine, params_.head_dim);
  std::int64_t last_unit = -1;
  for (std::int64_t slot = 0; slot < s_.slots; ++slot) {
    if (s_.bounds[slot] != kInfinityF) last_unit = slot / kUnitRows;
  }
  // The filter and the lists work one step behind the engine.
  struct Pending {
    Scores* scores = nullptr;
    const float* bounds = nullptr;
    std::int64_t row0 = 0, tile = 0;
  } pending;
  int slot = 0;
  const auto finish = [&](bool filter) HWY_ATTR {
    if (pending.scores == nullptr) return;
    if (filter) {
      for (int unit = 0; unit < 2; ++unit) {
        pending.scores[unit].Filter(pending.bounds + unit * kUnitRows,
                                    s_.masks.get() + unit * kUnitRows);
      }
    }
    Extract(pending.scores, pending.bounds, s_.masks.get(), pending.row0, pending.tile);
    pending.scores = nullptr;
  };
  for (std::int64_t tile = first / kTileKeys; tile * kTileKeys < last; ++tile) {
    for (std::int64_t pair = 0; pair < pairs; ++pair) {
      if (tile * kTileKeys >= reach[pair].hi || (tile + 1) * kTileKeys <= reach[pair].lo) continue;
      Scores* scores = PairScores(slot);
      const float* bounds = TileBounds(pair, tile, slot);
      for (int unit = 0; unit < 2; ++unit) {
        // Half a pair may be empty when few rows are swept again; its bounds hide what it holds.
        const bool empty = pair * 2 + unit > last_unit;
        FilterJob<Scores> job;
        if (pending.scores != nullptr) {
          job = {pending.scores + unit, pending.bounds + unit * kUnitRows,
                 s_.masks.get() + unit * kUnitRows};
        }
        if (empty) {
          job.Run();
          continue;
        }
        Engine::Unit(s_.queries.get() + static_cast<std::size_t>(pair * 2 + unit) * unit_bytes_,
                     keys_.data + static_cast<std::size_t>(tile) * tile_bytes, dim_, scores + unit,
                     job);
      }
      finish(/*filter=*/false);
      pending = {scores, bounds, pair * kPairRows, tile};
      slot ^= 1;
    }
  }
  finish(/*filter=*/true);
}

}  // namespace HWY_NAMESPACE
}  // namespace tsallis
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
