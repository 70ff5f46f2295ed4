// Sweeps a tile for a block: bounds, hits, lists. Included once per instruction set.
#if defined(TSALLIS_ATTENTION_CPU_SWEEP_LISTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TSALLIS_ATTENTION_CPU_SWEEP_LISTS_INL_H_
#undef TSALLIS_ATTENTION_CPU_SWEEP_LISTS_INL_H_
#else
#define TSALLIS_ATTENTION_CPU_SWEEP_LISTS_INL_H_
#endif

#include "attention/cpu/sweep/block-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tsallis {
namespace HWY_NAMESPACE {

// Bounds of a pair's rows in one tile, terms of distance included.
template <class Engine, ScoreEngine kEngine>
const float* BlockSweep<Engine, kEngine>::TileBounds(std::int64_t pair, std::int64_t tile,
                                                     int buffer) {
  if (!by_distance_) return s_.bounds.get() + pair * kPairRows;
  float* out = s_.pair_bounds.get() + buffer * kPairRows;
  for (std::int64_t i = 0; i < kPairRows; ++i) {
    const std::int64_t slot = pair * kPairRows + i;
    const SweepScratch::Row& row = s_.rows[s_.row_of_slot[slot]];
    out[i] = s_.bounds[slot];
    const std::int64_t begin = HWY_MAX(tile * kTileKeys, row.lo);
    const std::int64_t end = HWY_MIN((tile + 1) * kTileKeys, row.hi);
    if (out[i] == kInfinityF || begin >= end) {
      out[i] = kInfinityF;
      continue;
    }
    if (!(row.bound > -kInfinityF)) continue;
    const std::int64_t d0 = std::abs(row.position - begin), d1 = std::abs(row.position - end + 1);
    const bool inside = row.position >= begin && row.position < end;
    const std::int64_t nearest = inside ? 0 : HWY_MIN(d0, d1), farthest = HWY_MAX(d0, d1);
    const double raw =
        head_.terms.LeastProduct(row.bound, nearest, farthest, 4.0 * kSlack) / row.factor;
    out[i] = raw == std::numeric_limits<double>::infinity()
                 ? kInfinityF
                 : EngineBound(row, static_cast<float>(raw));
  }
  return out;
}

// With ALiBi the best keys are the nearest: 66 instead of 81 ms on one core (n = 32 768, two heads
// of slope 1/4, bf16). Rows of real models keep the nearest and the first.
template <class Engine, ScoreEngine kEngine>
void BlockSweep<Engine, kEngine>::Seed(bool first, std::int64_t least) {
  const std::size_t tile_bytes = TileBytes(kEngine, params_.head_dim);
  const std::int64_t pairs = (s_.slots + kPairRows - 1) / kPairRows;
  for (std::int64_t pair = 0; pair < pairs; ++pair) {
    const Reach reach = ReachOf(pair);
    if (reach.hi - reach.lo < least) continue;
    std::int64_t position = 0;
    for (std::int64_t slot = pair * kPairRows; slot < (pair + 1) * kPairRows; ++slot) {
      if (s_.bounds[slot] != kInfinityF) position = s_.rows[s_.row_of_slot[slot]].position;
    }
    const auto seed = [&](std::int64_t tile) HWY_ATTR {
      const float* bounds = TileBounds(pair, tile, 0);
      for (std::int64_t unit = 0; unit < 2; ++unit) {
        Scores* scores = PairScores(0) + unit;
        Engine::Unit(s_.queries.get() + static_cast<std::size_t>(pair * 2 + unit) * unit_bytes_,
                     keys_.data + static_cast<std::size_t>(tile) * tile_bytes, dim_, scores, {});
        scores->Filter(bounds + unit * kUnitRows, s_.masks.get() + unit * kUnitRows);
      }
      Extract(PairScores(0), bounds, s_.masks.get(), pair * kPairRows, tile);
    };
    const std::int64_t lowest = reach.lo / kTileKeys;
    const std::int64_t nearest = std::clamp(position, reach.lo, reach.hi - 1) / kTileKeys;
    const std::int64_t from = first ? HWY_MAX(lowest, nearest - kSeedTiles + 1) : nearest;
    if (first && lowest < from) seed(lowest);
    for (std::int64_t tile = from; tile <= nearest; ++tile) seed(tile);
  }
  std::int64_t rows[kSolveRows];
  std::size_t count = 0;
  for (std::int64_t r = 0; r < count_; ++r) {
    if (s_.rows[r].active && s_.rows[r].count > 0) {
      Settle(r);
      rows[count++] = r;
    }
    if (count < (r + 1 < count_ ? kSolveRows : std::size_t{1})) continue;
    SeedRows(rows, count);
    count = 0;
  }
}

// Raises bounds of a few rows to the thresholds of what is listed, and forgets that: the sweep
// comes by again.
template <class Engine, ScoreEngine kEngine>
void BlockSweep<Engine, kEngine>::SeedRows(const std::int64_t* rows, std::size_t count) {
  const auto solve = [&] {
    for (std::size_t i = 0; i < count; ++i) {
      MeasureList(rows[i]);
      s_.rows[rows[i]].tau = -1.0;
    }
    Approach(rows, count);
  };
  const auto threshold = [&](const SweepScratch::Row& row) {
    return static_cast<float>(row.tau + static_cast<double>(row.maximum));
  };
  solve();
  if (approximate_) {
    // The threshold of a part of a row is below its own: here of those that upper bounds would
    // keep.
    for (std::size_t i = 0; i < count; ++i) KeepAbove(rows[i], threshold(s_.rows[rows[i]]));
    Rescore(rows, count);
    solve();
  }
  for (std::size_t i = 0; i < count; ++i) {
    SweepScratch::Row& row = s_.rows[rows[i]];
    row.seed = threshold(row) - row.under - kSlack * (1.0f + std::abs(row.maximum));
    if (row.seed > row.bound) {
      SetBound(rows[i], row.seed);
      row.guessed = false;
    }
    row.raise_at = HWY_MIN(s_.list_capacity, HWY_MAX(kLeastListed, 4 * row.count));
    row.Clear();
  }
}

// Appends the hits of a pair of units to the lists of their rows, as raw scores. Where vectors can
// be compressed, all 64 scores of a row with a hit go behind its list: at n = 4 096 such a row has
// two hits, and a loop over them, which guesses wrong where it ends, took twice as long
// (docs/log.md). Elsewhere a compression is a table and two permutations, and the loop wins.
template <class Engine, ScoreEngine kEngine>
void BlockSweep<Engine, kEngine>::Extract(const Scores* scores, const float* bounds,
                                          const std::uint16_t* masks, std::int64_t row0,
                                          std::int64_t tile) {
  const DF d;
  const hn::RebindToUnsigned<DF> du;
  const hn::Rebind<std::uint16_t, DF> d16;
  constexpr std::size_t kLanes = hn::MaxLanes(d);
  constexpr bool kCompresses = kLanes == 16;
  std::uint32_t hits = 0;  // a bit a row
  for (std::size_t r = 0; r < kPairRows; r += kLanes) {
    const auto any = hn::PromoteTo(du, hn::Load(d16, masks + r));
    hits |= MaskBits(hn::RebindMask(d, hn::Ne(any, hn::Zero(du)))) << r;
  }
  const std::int64_t key0 = tile * kTileKeys;
  const auto first_keys = hn::Add(hn::Iota(du, 0), hn::Set(du, static_cast<std::uint32_t>(key0)));
  for (; hits != 0; hits &= hits - 1) {
    const auto slot = static_cast<std::uint32_t>(__builtin_ctz(hits));
    const Scores& unit = scores[slot / kUnitRows];
    const std::size_t unit_row = slot % kUnitRows;
    const std::int64_t r = s_.row_of_slot[row0 + slot];
    SweepScratch::Row& row = s_.rows[r];
    if (!row.active) continue;  // retired after the filter ran
    float* HWY_RESTRICT z = s_.list_z.get() + r * s_.list_stride;
    std::uint32_t* HWY_RESTRICT key = s_.list_key.get() + r * s_.list_stride;
    auto count = static_cast<std::size_t>(row.count);
    const std::int64_t from_key = HWY_MAX(row.lo - key0, 0),
                       to_key = HWY_MIN(row.hi - key0, kTileKeys);
    if (from_key >= to_key) continue;
    if constexpr (!kCompresses) {
      std::uint64_t bits = unit.Hits(unit_row, bounds[slot]);
      bits &= (~std::uint64_t{0} << from_key) & (~std::uint64_t{0} >> (kTileKeys - to_key));
      const std::size_t end = count + static_cast<std::size_t>(__builtin_popcountll(bits));
      const auto put = [&](std::size_t at) HWY_ATTR {
        // The last bit: where no hit is left, something is written that is not counted.
        const auto x = static_cast<std::uint32_t>(__builtin_ctzll(bits | std::uint64_t{1} << 63));
        z[at] = unit.At(unit_row, x);
        key[at] = static_cast<std::uint32_t>(key0) + x;
        bits &= bits - 1;
      };
      // Most rows have one or two, and which of them cannot be guessed.
      put(count);
      put(count + 1);
      for (std::size_t at = count + 2; at < end; ++at) put(at);
      count = end;
    } else {
      const VF bound = hn::Set(d, bounds[slot]);
      const auto append = [&](const auto& visible) HWY_ATTR {
        HWY_UNROLL(16)
        for (std::size_t x = 0; x < kTileKeys; x += kLanes) {
          const VF v = unit.Vector(unit_row, x);
          const auto keys = hn::Add(first_keys, hn::Set(du, static_cast<std::uint32_t>(x)));
          const auto mask = visible(keys, hn::Ge(v, bound));
          count += StoreTaken(mask, v, z + count, keys, key + count);
        }
      };
      if (from_key == 0 && to_key == kTileKeys) {
        append([](auto, auto mask) HWY_ATTR { return mask; });
      } else {
        const auto lo = hn::Set(du, static_cast<std::uint32_t>(row.lo));
        const auto hi = hn::Set(du, static_cast<std::uint32_t>(row.hi));
        append([&](auto keys, auto mask) HWY_ATTR {
          const auto inside = hn::AndNot(hn::Lt(keys, lo), hn::Lt(keys, hi));
          return hn::And(mask, hn::RebindMask(d, inside));
        });
      }
    }
    row.count = static_cast<std::int64_t>(count);
    if (row.count >= row.raise_at) {
      Raise(r);
    } else if (row.count >= s_.list_capacity) {  // a known threshold cannot rise
      row.dense = true;
      row.Clear();
      Retire(r);
    }
  }
}

// z of a listed entry.
template <class Engine, ScoreEngine kEngine>
float BlockSweep<Engine, kEngine>::ZOf(const SweepScratch::Row& row, std::int64_t key,
                                       float raw) const {
  const double z = row.exact_factor * static_cast<double>(raw);
  return static_cast<float>(has_terms_ ? head_.terms.Score(z, row.position - key) : z);
}

// Turns the scores of a list, since the last time, into z. They are raw but for `centre`.
template <class Engine, ScoreEngine kEngine>
void BlockSweep<Engine, kEngine>::Settle(std::int64_t r, float centre) {
  SweepScratch::Row& row = s_.rows[r];
  float* z = s_.list_z.get() + r * s_.list_stride;
  const std::uint32_t* key = s_.list_key.get() + r * s_.list_stride;
  std::int64_t i = row.settled;
  row.settled = row.count;
  if (has_terms_) {
    for (; i < row.count; ++i) z[i] = ZOf(row, key[i], z[i] + centre);
    return;
  }
  // The factor in two floats: one rounding, as ZOf's.
  const DF d;
  const SplitThreshold factor(row.exact_factor);
  const VF high = hn::Set(d, factor.high), low = hn::Set(d, factor.low);
  const VF shift = hn::Set(d, centre);
  for (; i < row.count; i += static_cast<std::int64_t>(hn::Lanes(d))) {
    const VF raw = hn::Add(hn::LoadU(d, z + i), shift);
    hn::StoreU(hn::MulAdd(raw, high, hn::Mul(raw, low)), d, z + i);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tsallis
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
