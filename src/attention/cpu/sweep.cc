#include "attention/cpu/sweep.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "attention/cpu/matrix_unit.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attention/cpu/sweep.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include "attention/cpu/sweep-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tsallis {
namespace HWY_NAMESPACE {

// The rows of a block that turned out dense, as runs of whole units.
void CollectDense(const HeadContext& head, const SweepScratch& scratch, std::int64_t q_begin,
                  std::int64_t count, std::vector<RowBlock>* dense) {
  for (std::int64_t r = 0; r < count; ++r) {
    if (!scratch.rows[r].dense) continue;
    std::int64_t end = r + 1;
    while (end < count && scratch.rows[end].dense) ++end;
    dense->push_back({head.sequence->batch, head.h, {q_begin + r, q_begin + end}});
    r = end;
  }
}

template <class Engine, ScoreEngine kEngine>
void ForwardBlock(const HeadContext& head, const HeadGuess& guess, std::int64_t q_begin,
                  std::int64_t count, const AttentionOutputs& outputs, const SavedLists& saved,
                  SweepScratch& scratch, std::vector<RowBlock>* dense) {
  const AttentionParams& params = *head.params;
  const std::int64_t b = head.sequence->array_batch, e = params.value_dim;
  const std::int64_t index0 = RowIndex(params, *head.sequence, head.h, q_begin);
  const GatherRows values = GatherRows::Of(params.v, b, KvHead(params, head.h), head.keys->first);
  float* sum = scratch.row_buffer.get();
  const auto store = [&](std::int64_t r, const RowResult& result, float maximum,
                         std::size_t support) HWY_ATTR {
    const std::int64_t index = index0 + r;
    StoreFloats(sum, outputs.out, Offset(outputs.out.strides, b, head.h, q_begin + r), e);
    if (outputs.tau != nullptr) outputs.tau[index] = result.tau;
    if (outputs.support_size != nullptr) {
      outputs.support_size[index] = static_cast<std::int64_t>(support);
    }
    if (outputs.entropy != nullptr) outputs.entropy[index] = result.entropy;
    if (outputs.maximum != nullptr) outputs.maximum[index] = maximum;
  };
  BlockSweep<Engine, kEngine> sweep(head, scratch);
  sweep.Begin(q_begin, count);
  for (std::int64_t r = 0; r < count; ++r) {
    if (scratch.rows[r].active || scratch.rows[r].dense) continue;  // sees no key
    std::fill_n(sum, e, 0.0f);
    store(r, {-kInfinityF, 0, 0.0}, -kInfinityF, 0);
    saved.Save(index0 + r, nullptr, nullptr, 0);
  }
  if (guess.usable) sweep.Guess(guess);
  sweep.Sweep();
  // A row's values are fetched while the next row is solved: gathered one after the other they cost
  // 54 cycles an entry at n = 16 384, most of it waiting for the third-level cache.
  struct Waiting {
    std::int64_t r = -1;
    std::size_t support = 0;
    float maximum = 0.0f;
  } waiting;
  const auto finish = [&]() HWY_ATTR {
    if (waiting.r < 0) return;
    const std::int64_t at = waiting.r * scratch.list_stride;
    const float* p = scratch.list_z.get() + at;
    const std::uint32_t* key = scratch.list_key.get() + at;
    GatherSum(values, params.v.dtype, key, p, waiting.support, e, sum);
    RowResult result;
    result.tau = scratch.rows[waiting.r].tau;
    if (outputs.entropy != nullptr) result.entropy = EntropyOf(p, waiting.support);
    store(waiting.r, result, waiting.maximum, waiting.support);
    saved.Save(index0 + waiting.r, key, p, waiting.support);
  };
  sweep.Solve([&](std::int64_t r) HWY_ATTR {
    const std::int64_t at = r * scratch.list_stride;
    std::uint32_t* key = scratch.list_key.get() + at;
    const std::size_t support = KeepPositive(key, scratch.weights.get(), scratch.list_z.get() + at,
                                             static_cast<std::size_t>(scratch.rows[r].count));
    PrefetchRows(values, params.v.dtype, key, support, e);
    finish();
    waiting = {r, support,
               static_cast<float>(static_cast<double>(sweep.maximum()) / (head.alpha - 1.0))};
  });
  finish();
  for (std::int64_t r = 0; r < count; ++r) {
    if (scratch.rows[r].dense) saved.Forget(index0 + r);
  }
  CollectDense(head, scratch, q_begin, count, dense);
}

// Solves a few rows from nothing, to see how far the head's scores are from normal ones.
template <class Engine, ScoreEngine kEngine>
HeadGuess Pilot(const HeadContext& head, SweepScratch& scratch) {
  const Span rows = head.sequence->q;
  BlockSweep<Engine, kEngine> sweep(head, scratch);
  double sum = 0.0, squares = 0.0, kept = 0.0;
  std::int64_t samples = 0, solved = 0, dense = 0;
  constexpr std::int64_t kPilots = 4;
  for (std::int64_t pilot = 1; pilot <= kPilots; ++pilot) {
    const std::int64_t count = std::min(kPairRows, rows.size());
    const std::int64_t begin =
        std::max(rows.begin, rows.begin + rows.size() * pilot / kPilots - count);
    sweep.Begin(begin, count);
    sweep.Guess({});
    sweep.Sweep();
    sweep.Solve([&](std::int64_t r) HWY_ATTR {
      const SweepScratch::Row& row = scratch.rows[r];
      const auto support = std::count_if(scratch.weights.get(), scratch.weights.get() + row.count,
                                         [](float p) { return p > 0.0f; });
      kept += static_cast<double>(support) / static_cast<double>(row.hi - row.lo);
      ++solved;
      if (!(row.sigma > 0.0f) || row.hi - row.lo < 256) return;
      const double x = (row.tau - row.mean) / row.sigma - row.curve;
      sum += x;
      squares += x * x;
      ++samples;
    });
    for (std::int64_t r = 0; r < count; ++r) dense += scratch.rows[r].dense ? 1 : 0;
  }
  HeadGuess guess;
  guess.dense = dense > solved || (solved > 0 && kept / static_cast<double>(solved) > 0.125);
  if (samples >= 16) {
    const double mean = sum / static_cast<double>(samples);
    const double variance = std::max(squares / static_cast<double>(samples) - mean * mean, 0.0);
    guess.usable = true;
    guess.shift = static_cast<float>(mean);
    guess.spread = static_cast<float>(std::sqrt(variance) + 0.01);
  }
  return guess;
}

// One instruction set's and engine's functions, for the driver below.
template <class Engine, ScoreEngine kEngine>
void Bind(SweepFunctions* functions) {
  functions->engine = kEngine;
  functions->pack = [](const AttentionParams& params, const Sequence& sequence, std::int64_t kv,
                       std::int64_t begin, std::int64_t end, const PackedKeys& keys,
                       PackedBounds* bounds) {
    PackTiles(kEngine, params, sequence, kv, begin, end, keys, bounds);
  };
  functions->moments = [](const AttentionParams& params, const Sequence& sequence, std::int64_t kv,
                          const PackedKeys& keys, SweepScratch& scratch) {
    ComputeMoments(kEngine, params, sequence, kv, keys, scratch);
  };
  functions->pilot = Pilot<Engine, kEngine>;
  functions->forward = ForwardBlock<Engine, kEngine>;
}

void BindEngine(ScoreEngine engine, bool emulated, SweepFunctions* functions) {
  (void)emulated;
#if HWY_TARGET == HWY_AVX3
  if (engine == ScoreEngine::kBf16Dot) Bind<Bf16DotEngine, ScoreEngine::kBf16Dot>(functions);
  if (engine == ScoreEngine::kAmx) {
    if (emulated) {
      Bind<MatrixEngine<EmulatedTiles>, ScoreEngine::kAmx>(functions);
    } else {
      Bind<MatrixEngine<RealTiles>, ScoreEngine::kAmx>(functions);
    }
  }
#endif
  if (engine == ScoreEngine::kFloat) Bind<FloatEngine, ScoreEngine::kFloat>(functions);
}

}  // namespace HWY_NAMESPACE
}  // namespace tsallis
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tsallis {

HWY_EXPORT(BindEngine);

SweepFunctions GetSweepFunctions(ScoreEngine engine, bool emulated) {
  SweepFunctions functions;
  HWY_DYNAMIC_DISPATCH(BindEngine)(engine, emulated, &functions);
  return functions;
}

}  // namespace tsallis
#endif  // HWY_ONCE
