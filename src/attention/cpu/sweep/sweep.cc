#include "attention/cpu/sweep/sweep.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "attention/cpu/matrix_unit.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attention/cpu/sweep/sweep.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include "attention/cpu/sweep/solve-inl.h"
#include "simplex/backward-inl.h"

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
                  std::int64_t count, const AttentionOutputs& outputs,
                  const WeightReceiver* receiver, const SavedLists& saved, SweepScratch& scratch,
                  std::vector<RowBlock>* dense) {
  const AttentionParams& params = *head.params;
  const std::int64_t b = head.sequence->array_batch, e = params.value_dim;
  const std::int64_t index0 = RowIndex(params, *head.sequence, head.h, q_begin);
  const HeadRows values =
      ValueRows(params, *head.sequence, KvHead(params, head.h), head.keys->first);
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
    if (receiver != nullptr) {
      receiver->Put(index0 + r, 0, nullptr, nullptr, 0);
      continue;
    }
    std::fill_n(sum, e, 0.0f);
    store(r, {-kInfinityF, 0, 0.0}, -kInfinityF, 0);
    saved.Save(index0 + r, nullptr, nullptr, 0);
  }
  if (guess.usable) sweep.Guess(guess);
  if (guess.seeds) {
    sweep.Seed(/*first=*/true, kLeastSeeded);
  } else if (head.terms.slope != 0.0) {
    sweep.Seed(/*first=*/false, 1);
  }
  sweep.Sweep();
  const auto weights_of = [&](std::int64_t r) {
    return scratch.list_z.get() + r * scratch.list_stride;
  };
  const auto keys_of = [&](std::int64_t r) {
    return scratch.list_key.get() + r * scratch.list_stride;
  };
  // With the row's values in `sum`.
  const auto finish = [&](std::int64_t r, std::size_t support) HWY_ATTR {
    const float* p = weights_of(r);
    const std::uint32_t* key = keys_of(r);
    RowResult result;
    result.tau = scratch.rows[r].tau;
    if (outputs.entropy != nullptr) result.entropy = EntropyOf(p, support);
    float maximum = -kInfinityF;
    if (outputs.maximum != nullptr) {
      // Scores too close together for different weights may still differ.
      const float most = *std::max_element(p, p + support);
      for (std::size_t i = 0; i < support; ++i) {
        if (p[i] == most) maximum = std::max(maximum, sweep.ScoreOf(r, key[i]));
      }
    }
    store(r, result, maximum, support);
    saved.Save(index0 + r, key, p, support);
  };
  // Rows that share their keys gather values together, at the end. Otherwise a row's values are
  // fetched while the next row is solved: gathered one after the other they cost 54 cycles an entry
  // at n = 16 384, most of it waiting for the third-level cache.
  const bool together = ShareKeys(sweep.Listed(), head.keys->count);
  struct Solved {
    std::int64_t r;
    std::size_t support;
  };
  Solved solved[kBlockRows];
  std::size_t waiting = 0;  // solved, and not yet gathered
  const auto gather = [&]() HWY_ATTR {
    KeySpans spans;
    for (std::size_t i = 0; i < waiting; ++i) {
      spans.Add(solved[i].r, keys_of(solved[i].r), solved[i].support);
    }
    const auto pairs_of = [&](std::int64_t r) { return scratch.pairs.get() + r * 2 * e; };
    spans.ForEach(together, head.keys->count, e * static_cast<std::int64_t>(SizeOf(values.dtype)),
                  [&](std::int64_t r, std::int64_t begin, std::int64_t end) HWY_ATTR {
                    GatherPairs(values, keys_of(r) + begin, weights_of(r) + begin,
                                static_cast<std::size_t>(end - begin), e, begin == 0, pairs_of(r));
                  });
    for (std::size_t i = 0; i < waiting; ++i) {
      const auto& [r, support] = solved[i];
      if (support == 0) {
        std::fill_n(sum, e, 0.0f);
      } else {
        SumPairs(pairs_of(r), e, sum);
      }
      finish(r, support);
    }
    waiting = 0;
  };
  sweep.Solve([&](std::int64_t r, std::size_t support) HWY_ATTR {
    if (receiver != nullptr) {
      receiver->Put(index0 + r, head.keys->first, keys_of(r), weights_of(r), support);
      return;
    }
    if (support == 0 && outputs.maximum != nullptr) {  // a sink's: the largest score was not listed
      scratch.rows[r].dense = true;
      return;
    }
    if (!together) {
      PrefetchRows(values, keys_of(r), support, e);
      gather();
    }
    solved[waiting++] = {r, support};
  });
  gather();
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
  PilotFit fit;
  double missed = 0.0, kept = 0.0;
  std::int64_t seeded = 0, solved = 0, dense = 0;
  constexpr std::int64_t kPilots = 4, kLeastPilots = 8;
  for (std::int64_t pilot = 1; pilot <= kPilots; ++pilot) {
    // At n = 1 024, four times 32 rows were an eighth of all.
    const std::int64_t count =
        std::min(std::clamp(rows.size() / 64, kLeastPilots, kPairRows), rows.size());
    const std::int64_t begin =
        std::max(rows.begin, rows.begin + rows.size() * pilot / kPilots - count);
    sweep.Begin(begin, count);
    sweep.Guess({});
    sweep.Seed(/*first=*/true, kLeastPilotSeeded);
    sweep.Sweep();
    sweep.Solve([&](std::int64_t r, std::size_t support) HWY_ATTR {
      const SweepScratch::Row& row = scratch.rows[r];
      kept += static_cast<double>(support) / static_cast<double>(row.hi - row.lo);
      ++solved;
      if (!(row.sigma > 0.0f) || row.hi - row.lo < kLeastGuessed) return;
      fit.Add((row.tau - row.mean) / row.sigma - row.curve);
      if (row.seed == -kInfinityF) return;
      missed += (row.tau - row.seed) / row.sigma;
      ++seeded;
    });
    for (std::int64_t r = 0; r < count; ++r) dense += scratch.rows[r].dense ? 1 : 0;
  }
  HeadGuess guess;
  guess.dense = dense > solved || (solved > 0 && kept / static_cast<double>(solved) >
                                                     DenseShare(kEngine, head.params->q.dtype));
  if (fit.usable()) {
    guess.usable = true;
    guess.kept = kept / static_cast<double>(solved);
    guess.shift = fit.shift();
    guess.spread = fit.spread();
    guess.seeds = seeded > 0 && missed / static_cast<double>(seeded) < kGuessMargin * guess.spread;
  }
  return guess;
}

// The support of a row of a block. keys, weights: [n], keys ascending.
struct Support {
  std::int64_t row = 0;
  const std::uint32_t* keys = nullptr;
  const float* weights = nullptr;
  std::size_t n = 0;
};

struct Supports {
  Support rows[kBlockRows];
  std::size_t count = 0, entries = 0;

  void Add(std::int64_t row, const std::uint32_t* keys, const float* weights, std::size_t n) {
    if (n == 0) return;
    rows[count++] = {row, keys, weights, n};
    entries += n;
  }
};

// The supports of a block: saved, or found again. False: some row is dense.
template <class Engine, ScoreEngine kEngine>
bool FindSupports(const HeadContext& head, std::int64_t q_begin, std::int64_t count,
                  const double* tau, const SavedLists& saved, SweepScratch& scratch,
                  Supports* supports) {
  bool all_saved = true;
  for (std::int64_t r = 0; r < count; ++r) {
    all_saved = all_saved && saved.Count(r) != SavedLists::kNotSaved;
  }
  if (all_saved) {
    for (std::int64_t r = 0; r < count; ++r) {
      supports->Add(r, saved.Keys(r), saved.Weights(r), static_cast<std::size_t>(saved.Count(r)));
    }
    return true;
  }
  BlockSweep<Engine, kEngine> sweep(head, scratch);
  sweep.Begin(q_begin, count);
  for (std::int64_t r = 0; r < count; ++r) {
    if (scratch.rows[r].dense || std::isnan(tau[r])) return false;
    if (!scratch.rows[r].active) continue;
    if (tau[r] == -std::numeric_limits<double>::infinity()) {
      sweep.Retire(r);
    } else {
      sweep.KnownThreshold(r, tau[r]);
    }
  }
  sweep.Sweep();
  for (std::int64_t r = 0; r < count; ++r) {
    if (scratch.rows[r].dense) return false;
  }
  sweep.Recall([&](std::int64_t r, std::size_t support) HWY_ATTR {
    const std::int64_t at = r * scratch.list_stride;
    supports->Add(r, scratch.list_key.get() + at, scratch.list_z.get() + at, support);
  });
  return true;
}

// dp, ds and what follows for the queries of a block; what its keys get goes to `edges`.
template <class Engine, ScoreEngine kEngine>
bool BackwardBlock(const HeadContext& head, std::int64_t q_begin, std::int64_t count,
                   const AttentionGradients& gradients, const SavedLists& saved,
                   SweepScratch& scratch, BlockEdges* edges) {
  const AttentionParams& params = *head.params;
  const Sequence& sequence = *head.sequence;
  const std::int64_t b = sequence.array_batch, h = head.h, kv = KvHead(params, h);
  const std::int64_t d = params.head_dim, e = params.value_dim;
  const std::int64_t index0 = RowIndex(params, sequence, h, q_begin);
  const HeadRows keys = KeyRows(params, sequence, kv, head.keys->first);
  const HeadRows values = ValueRows(params, sequence, kv, head.keys->first);
  float* d_out = scratch.row_buffer.get();
  float* dq = d_out + e + 64;
  edges->Clear();
  const bool queries = gradients.dq.data != nullptr || gradients.d_length_scale != nullptr;
  if (queries) {
    std::fill_n(dq, d, 0.0f);
    for (std::int64_t r = 0; r < count; ++r) {  // rows without support
      if (gradients.dq.data != nullptr) {
        StoreFloats(dq, gradients.dq, Offset(gradients.dq.strides, b, h, q_begin + r), d);
      }
      if (gradients.d_length_scale != nullptr) gradients.d_length_scale[index0 + r] = 0.0;
    }
  }
  Supports supports;
  if (!FindSupports<Engine, kEngine>(head, q_begin, count, gradients.tau + index0,
                                     saved.From(index0), scratch, &supports)) {
    return false;
  }

  // From dp to ds, in place, with room for a sink's entry.
  const auto differentiate = [&](const Support& support, float* dp) HWY_ATTR {
    const auto& [r, key, p, n] = support;
    const std::int64_t q_row = q_begin + r;
    float* ds = dp;
    double d_alpha = 0.0;
    const double eps = head.alpha - 1.0;
    const float* weights = p;
    std::size_t entries = n;
    if (const float sink = head.sink(); sink > -kInfinityF) {
      // One more entry, with the value 0.
      const double above = static_cast<double>(sink) - gradients.tau[index0 + r];
      float* all = scratch.weights.get();
      std::copy_n(p, n, all);
      all[n] = static_cast<float>(above > 0.0 ? std::pow(above, 1.0 / eps) : 0.0);
      dp[entries++] = 0.0f;
      weights = all;
    }
    WithWeight(eps, [&](const auto& weight) HWY_ATTR {
      BackwardRow(weight, weights, dp, entries, 1.0f, ds, eps,
                  gradients.d_alpha != nullptr ? &d_alpha : nullptr);
    });
    edges->d_alpha += d_alpha;
    if (entries > n) edges->d_sink += static_cast<double>(ds[n]);
    const std::int64_t position = q_row + sequence.shift - head.keys->first;
    const auto distance = [position, keys = key](std::size_t i) {
      return position - static_cast<std::int64_t>(keys[i]);
    };
    if (gradients.d_slopes != nullptr) {
      double sum = 0.0;
      for (std::size_t i = 0; i < n; ++i) {
        sum += static_cast<double>(ds[i]) * static_cast<double>(std::abs(distance(i)));
      }
      edges->d_slope -= sum;
    }
    const double factor = RowFactor(params, sequence, h, q_row);
    const HeadTerms& terms = head.score_terms;
    if (terms.needs_products()) {
      // The products again. dq's memory is free until the sum.
      constexpr std::size_t kProducts = 64;
      float products[kProducts];
      LoadFloats(HeadRows::Of(params.q, b, h), q_row, d, dq);
      for (std::size_t from = 0; from < n; from += kProducts) {
        const std::size_t here = std::min(kProducts, n - from);
        GatherDot(keys, key + from, here, dq, d, products);
        for (std::size_t i = from; i < from + here; ++i) {
          const double x = factor * static_cast<double>(products[i - from]);
          ds[i] *= static_cast<float>(factor * terms.Derivative(x, distance(i)));
        }
      }
    } else {
      for (std::size_t i = 0; i < n; ++i) {
        ds[i] *= static_cast<float>(factor);
        if (terms.distances.any()) ds[i] *= *terms.distances.a(distance(i));
      }
    }
  };
  const auto store = [&](std::int64_t r) HWY_ATTR {
    const std::int64_t q_row = q_begin + r;
    if (gradients.dq.data != nullptr) {
      StoreFloats(dq, gradients.dq, Offset(gradients.dq.strides, b, h, q_row), d);
    }
    if (gradients.d_length_scale == nullptr) return;
    // dq = c sum_j (ds_j a_j scale) k_j, and the derivative in c is the same sum times q.
    float* q = scratch.query_rows.get();
    LoadFloats(HeadRows::Of(params.q, b, h), q_row, d, q);
    const double dot = DotFloats(q, dq, static_cast<std::size_t>(d));
    gradients.d_length_scale[index0 + r] =
        dot * ScaleOf(params) / RowFactor(params, sequence, h, q_row);
  };

  // Rows that share their keys gather the values of all, and then the keys, panel by panel. Of
  // other rows, one after the other, keys are fetched while values are gathered.
  const bool shared = ShareKeys(static_cast<std::int64_t>(supports.entries), head.keys->count);
  const auto bytes = static_cast<std::int64_t>(SizeOf(keys.dtype));
  const auto width = static_cast<std::size_t>(2 * d);
  std::size_t end = 0;
  for (std::size_t begin = 0; begin < supports.count; begin = end) {
    end = shared ? supports.count : begin + 1;
    constexpr std::size_t kRoom = 64;  // a sink's entry and a vector
    std::size_t at[kBlockRows], room = 0;
    KeySpans spans;
    for (std::size_t i = begin; i < end; ++i) {
      const Support& support = supports.rows[i];
      if (!shared) PrefetchRows(keys, support.keys, support.n, d);
      spans.Add(static_cast<std::int64_t>(i), support.keys, support.n);
      at[i] = room;
      room += support.n + kRoom;
    }
    float* dp = edges->Begin(room);
    spans.ForEach(shared, head.keys->count, e * bytes,
                  [&](std::int64_t row, std::int64_t from, std::int64_t to) HWY_ATTR {
                    const auto i = static_cast<std::size_t>(row);
                    const Support& support = supports.rows[i];
                    LoadFloats(HeadRows::Of(gradients.d_out, b, h), q_begin + support.row, e,
                               d_out);
                    GatherDot(values, support.keys + from, static_cast<std::size_t>(to - from),
                              d_out, e, dp + at[i] + from);
                  });
    for (std::size_t i = begin; i < end; ++i) {
      const Support& support = supports.rows[i];
      float* ds = dp + at[i];
      differentiate(support, ds);
      at[i] = edges->size();
      edges->Add(support.row, support.keys, support.weights, ds, support.n);
    }
    if (!queries) continue;
    const auto pairs_of = [&](std::size_t i) { return scratch.pairs.get() + (i - begin) * width; };
    spans.ForEach(shared, head.keys->count, d * bytes,
                  [&](std::int64_t row, std::int64_t from, std::int64_t to) HWY_ATTR {
                    const auto i = static_cast<std::size_t>(row);
                    GatherPairs(keys, supports.rows[i].keys + from, edges->ds() + at[i] + from,
                                static_cast<std::size_t>(to - from), d, from == 0, pairs_of(i));
                  });
    for (std::size_t i = begin; i < end; ++i) {
      SumPairs(pairs_of(i), d, dq);
      store(supports.rows[i].row);
    }
  }
  return true;
}

// sums[key[i]] += weight[i] * x for n keys. x: [columns], sums: [keys, columns].
HWY_INLINE void ScatterAdd(const std::uint32_t* HWY_RESTRICT key, const float* HWY_RESTRICT weight,
                           std::size_t n, const float* HWY_RESTRICT x, std::int64_t columns,
                           float* HWY_RESTRICT sums) {
  const DF df;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(df));
  std::int64_t c = 0;
  for (; c + 4 * lanes <= columns; c += 4 * lanes) {
    const VF x0 = hn::LoadU(df, x + c), x1 = hn::LoadU(df, x + c + lanes);
    const VF x2 = hn::LoadU(df, x + c + 2 * lanes), x3 = hn::LoadU(df, x + c + 3 * lanes);
    for (std::size_t i = 0; i < n; ++i) {
      const VF w = hn::Set(df, weight[i]);
      float* HWY_RESTRICT to = sums + key[i] * columns + c;
      hn::StoreU(hn::MulAdd(w, x0, hn::LoadU(df, to)), df, to);
      hn::StoreU(hn::MulAdd(w, x1, hn::LoadU(df, to + lanes)), df, to + lanes);
      hn::StoreU(hn::MulAdd(w, x2, hn::LoadU(df, to + 2 * lanes)), df, to + 2 * lanes);
      hn::StoreU(hn::MulAdd(w, x3, hn::LoadU(df, to + 3 * lanes)), df, to + 3 * lanes);
    }
  }
  for (; c + lanes <= columns; c += lanes) {
    const VF part = hn::LoadU(df, x + c);
    for (std::size_t i = 0; i < n; ++i) {
      float* HWY_RESTRICT to = sums + key[i] * columns + c;
      hn::StoreU(hn::MulAdd(hn::Set(df, weight[i]), part, hn::LoadU(df, to)), df, to);
    }
  }
  for (; c < columns; ++c) {
    for (std::size_t i = 0; i < n; ++i) sums[key[i] * columns + c] += weight[i] * x[c];
  }
}

// Adds the edges of some blocks that end in a bucket of keys to the sums. dk: [keys, head_dim],
// dv: [keys, value_dim] of the head.
void AddEdges(const AttentionParams& params, const AttentionGradients& gradients,
              const BlockEdges* blocks, std::size_t count, std::int64_t bucket, float* dk,
              float* dv) {
  const std::int64_t d = params.head_dim, e = params.value_dim;
  HWY_ALIGN float x[512];
  for (std::size_t at = 0; at < count; ++at) {
    const BlockEdges& block = blocks[at];
    for (const EdgeRun& run : block.Bucket(bucket)) {
      const std::int64_t b = block.array_batch, row = block.q_begin + run.row;
      const std::uint32_t* key = block.keys() + run.begin;
      const std::size_t n = run.end - run.begin;
      if (dk != nullptr) {
        LoadFloats(HeadRows::Of(params.q, b, block.h), row, d, x);
        ScatterAdd(key, block.ds() + run.begin, n, x, d, dk);
      }
      if (dv != nullptr) {
        LoadFloats(HeadRows::Of(gradients.d_out, b, block.h), row, e, x);
        ScatterAdd(key, block.p() + run.begin, n, x, e, dv);
      }
    }
  }
}

// One instruction set's and engine's functions, for the driver below.
template <class Engine, ScoreEngine kEngine>
void Bind(SweepFunctions* functions) {
  functions->engine = kEngine;
  if (IsByteEngine(kEngine)) functions->scale = ComputeScale;
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
  functions->backward = BackwardBlock<Engine, kEngine>;
  functions->add_edges = AddEdges;
  functions->store = [](const float* values, const MutableArray4& array, std::int64_t start,
                        std::int64_t columns) { StoreFloats(values, array, start, columns); };
}

void BindEngine(ScoreEngine engine, bool emulated, SweepFunctions* functions) {
  (void)emulated;
#if TSALLIS_BYTES_HERE
  if (engine == ScoreEngine::kInt8) Bind<ByteEngine, ScoreEngine::kInt8>(functions);
#endif
#if HWY_TARGET == HWY_AVX2
  if (engine == ScoreEngine::kInt7) Bind<WordEngine, ScoreEngine::kInt7>(functions);
#elif HWY_TARGET <= HWY_AVX3
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
