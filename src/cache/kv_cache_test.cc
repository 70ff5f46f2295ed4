// The cache against plain vectors, and attention on it against attention on arrays.
#include "tsallis/kv_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "cache/testing/cases.h"
#include "core/every_target.h"
#include "core/testing/environment.h"

namespace tsallis {
namespace {

using namespace cache_testing;

// Arrays and a cache give the same bits, screened or not, and a proof.
void Check(const Case& c,
           const std::function<void(TokenRows&, TokenRows&, TokenRows&)>& change = {}) {
  TokenRows q = Normal(1, c.dtype, c.kv_heads * c.group, 1, c.head_dim, c.spread);
  TokenRows k = Normal(2, c.dtype, c.kv_heads, c.tokens, c.head_dim);
  TokenRows v = Normal(3, c.dtype, c.kv_heads, c.tokens, c.value_dim);
  if (change) change(q, k, v);
  ForEachTarget([&](const std::string& target) {
    SCOPED_TRACE(target);
    const Answers expected = OnArrays(c, q, k, v);
    for (const KeyScreen screen : {KeyScreen::kNone, KeyScreen::kBytes}) {
      KvCache cache(ShapeOf(c), {.screen = screen});
      const KvCache::Sequence sequence = cache.Create();
      // In pieces that end anywhere.
      for (std::int64_t at = 0; at < c.tokens;) {
        const std::int64_t count = std::min<std::int64_t>(c.tokens - at, 1 + at * 7 % 150);
        cache.Append({.threads = 2}, sequence, 0, k.Array(at), v.Array(at), count);
        at += count;
      }
      for (const int threads : {1, 3}) {
        const Answers found = OnCache(c, cache, sequence, q, 0, threads);
        EXPECT_TRUE(found.Same(expected)) << "screen " << static_cast<int>(screen);
        for (std::size_t i = 0; i < found.tau.size(); ++i) {
          EXPECT_LE(found.certificate[i], 0.0) << i;
          EXPECT_LE(found.support[i], std::max<std::int64_t>(found.scored[i], 0)) << i;
        }
      }
    }
  });
}

TEST(KvCacheDecode, HasTheBitsOfAttentionOnArrays) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    for (const double alpha : {1.1, 1.5, 2.0, 2.7, 4.0}) {
      Check({.dtype = dtype, .alpha = alpha});
    }
    Check({.dtype = dtype, .softmax = true});
  }
  for (const std::int64_t tokens : {1, 2, 63, 64, 65, 128, 1500}) Check({.tokens = tokens});
  for (const std::int64_t dim : {1, 3, 16, 17, 64, 100}) {
    Check({.head_dim = dim, .value_dim = dim + 1});
  }
  Check({.kv_heads = 1, .group = 11});
}

TEST(KvCacheDecode, TermsBoundTheScoresTheyMake) {
  Check({.slopes = true});
  Check({.length_scale = true});
  Check({.alpha = 2.0, .sink = true});
  Check({.alpha = 4.0, .spread = 0.01, .sink = true});  // which leaves keys without a weight
  Check({.scale_invariant = 10.0});
  Check({.softcap = 2.0});
  Check({.softcap = 5.0, .left = 100});
  Check({.begin = 1});
  Check({.slopes = true, .scale_invariant = 10.0, .begin = 300});
  Check({.softmax = true, .left = 100, .begin = 650});
  Check({.begin = 699});
  Check({.slopes = true, .length_scale = true, .sink = true, .softcap = 4.0, .left = 333});
  Check({.softmax = true, .length_scale = true, .sink = true, .scale_invariant = 3.0});
  // The sink leaves no key a weight, and the largest score is that of a key far back.
  for (const double scale_invariant : {0.0, 10.0}) {
    Case c{.spread = 0.1, .slopes = true, .sink = true, .scale_invariant = scale_invariant};
    c.sink_shift = 50.0;
    Check(c, [](TokenRows& q, TokenRows& k, TokenRows&) {
      for (std::int64_t x = 0; x < 24; ++x) {
        for (std::int64_t h = 0; h < 6; ++h) q.Set(h * 24 + x, 3.0);
        for (std::int64_t h = 0; h < 2; ++h) k.Set((h * 700 + 300) * 24 + x, 3.0);
      }
    });
  }
}

TEST(KvCacheDecode, ScoresFewKeys) {
  const Case c{.dtype = DType::kBFloat16, .tokens = 8000, .head_dim = 64, .value_dim = 64};
  const TokenRows q = Normal(1, c.dtype, 6, 1, 64, 2.0), k = Normal(2, c.dtype, 2, c.tokens, 64);
  const TokenRows v = Normal(3, c.dtype, 2, c.tokens, 64);
  KvCache cache(ShapeOf(c));
  const KvCache::Sequence sequence = cache.Create();
  cache.Append({}, sequence, 0, k.Array(), v.Array(), c.tokens);
  const Answers found = OnCache(c, cache, sequence, q);
  for (std::size_t i = 0; i < found.scored.size(); ++i) {
    EXPECT_LT(found.scored[i], 4 * found.support[i] + 40) << i;
    EXPECT_LT(found.certificate[i], 0.0);
    EXPECT_GT(found.certificate[i], -0.5) << "it says how near the next key is";
  }
}

TEST(KvCacheDecode, ValuesOfAnyKind) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const Case c{.tokens = 300};
  const auto all = [](TokenRows& rows, double value) {
    const std::int64_t n = rows.heads * rows.tokens * rows.columns;
    for (std::int64_t i = 0; i < n; ++i) rows.Set(i, value);
  };
  Check(c, [&](TokenRows&, TokenRows& k, TokenRows&) { all(k, 1.0); });  // flat: every key is kept
  Check(c, [&](TokenRows&, TokenRows& k, TokenRows&) { all(k, 0.0); });
  Check(c, [&](TokenRows& q, TokenRows&, TokenRows&) { all(q, 0.0); });
  Check(c, [&](TokenRows&, TokenRows& k, TokenRows&) { k.Set(77, 300.0); });  // one key wins
  Check(c, [&](TokenRows&, TokenRows& k, TokenRows&) { k.Set(77, std::nan("")); });
  Check(c, [&](TokenRows&, TokenRows& k, TokenRows&) { k.Set(77, kInfinity); });
  Check(c, [&](TokenRows&, TokenRows& k, TokenRows&) { k.Set(77, -kInfinity); });
  Check(c, [&](TokenRows& q, TokenRows&, TokenRows&) { q.Set(5, std::nan("")); });
  Check(c, [&](TokenRows& q, TokenRows&, TokenRows&) { q.Set(5, kInfinity); });
  Check(c, [&](TokenRows&, TokenRows& k, TokenRows&) {  // ties
    for (std::int64_t i = 0; i < 2 * 300 * 24; ++i) k.Set(i, std::round(k.At(i)));
  });
  Check(c, [&](TokenRows&, TokenRows& k, TokenRows&) {  // far below each other
    for (std::int64_t i = 0; i < 2 * 300 * 24; ++i) k.Set(i, 1e-20 * k.At(i));
  });
}

TEST(KvCacheDecode, AChunkOfQueriesIsThatManyQueries) {
  const Case c{.dtype = DType::kBFloat16, .tokens = 200, .left = 90};
  const TokenRows k = Normal(2, c.dtype, 2, c.tokens, 24), v = Normal(3, c.dtype, 2, c.tokens, 16);
  const TokenRows q = Normal(1, c.dtype, 6, 5, 24, 2.0);
  KvCache cache(ShapeOf(c));
  const KvCache::Sequence sequence = cache.Create();
  cache.Append({}, sequence, 0, k.Array(), v.Array(), c.tokens);
  const Answers together = OnCache(c, cache, sequence, q);
  for (std::int64_t i = 4; i >= 0; --i) {
    TokenRows one(c.dtype, 6, 1, 24);
    for (std::int64_t h = 0; h < 6; ++h) {
      for (std::int64_t x = 0; x < 24; ++x) one.Set(h * 24 + x, q.At((h * 5 + i) * 24 + x));
    }
    const Answers alone = OnCache(c, cache, sequence, one);
    for (std::int64_t h = 0; h < 6; ++h) {
      for (std::int64_t x = 0; x < 16; ++x) {
        EXPECT_EQ(alone.out.At(h * 16 + x), together.out.At((h * 5 + i) * 16 + x));
      }
    }
    cache.Truncate(sequence, cache.Length(sequence) - 1);
  }
}

// Covers as many queries as other kernels attend to together.
TEST(KvCacheDecode, ManyQueriesHaveTheBitsOfAttentionOnArrays) {
  const auto check = [](const Case& c, std::int64_t queries) {
    const TokenRows q = Normal(1, c.dtype, c.kv_heads * c.group, queries, c.head_dim, c.spread);
    const TokenRows k = Normal(2, c.dtype, c.kv_heads, c.tokens, c.head_dim);
    const TokenRows v = Normal(3, c.dtype, c.kv_heads, c.tokens, c.value_dim);
    KvCache cache(ShapeOf(c));
    const KvCache::Sequence sequence = cache.Create();
    cache.Append({}, sequence, 0, k.Array(), v.Array(), c.tokens);
    ForEachTarget([&](const std::string& target) {
      SCOPED_TRACE(target);
      const Answers expected = OnArrays(c, q, k, v);
      for (const int threads : {1, 3}) {
        EXPECT_TRUE(OnCache(c, cache, sequence, q, 0, threads, /*account=*/false).Same(expected));
      }
    });
  };
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    check({.dtype = dtype}, 65);
    check({.dtype = dtype, .tokens = 200}, 200);
    check({.dtype = dtype, .head_dim = 64, .value_dim = 64, .softmax = true}, 9);
    check({.dtype = dtype, .softmax = true}, 130);
  }
  // Few enough to be answered one by one with bytes, were they not flat.
  check({.tokens = 5200, .spread = 0.02}, 40);
  check({.alpha = 3.0}, 70);
  check({.slopes = true, .length_scale = true, .sink = true, .begin = 301}, 70);
  check({.softmax = true, .scale_invariant = 10.0, .softcap = 4.0, .left = 100, .begin = 33}, 90);
}

// Whatever the kernels of arrays serve, for one query too, and some of the cache's key heads.
TEST(KvCacheDecode, EveryMapAndMaskOnSomeKeyHeads) {
  constexpr std::int64_t kTokens = 300, kDim = 16;
  const TokenRows k = Normal(2, DType::kFloat32, 5, kTokens, kDim);
  const TokenRows v = Normal(3, DType::kFloat32, 5, kTokens, kDim);
  const TokenRows bias = Normal(4, DType::kFloat32, 4, 70, kTokens);
  std::vector<std::uint8_t> visible(4 * 70 * kTokens), blocks(4 * 9 * 10);
  for (std::size_t i = 0; i < visible.size(); ++i) visible[i] = i % 3 != 1;
  for (std::size_t i = 0; i < blocks.size(); ++i) blocks[i] = i % 4 != 2;
  KvCache cache({.kv_heads = 5, .head_dim = kDim, .value_dim = kDim, .dtype = DType::kFloat32});
  const KvCache::Sequence sequence = cache.Create();
  cache.Append({}, sequence, 0, k.Array(), v.Array(), kTokens);
  const auto check = [&](std::int64_t queries, const auto& set) {
    const TokenRows q = Normal(1, DType::kFloat32, 4, queries, kDim);
    DecodeParams params;
    params.batch = 1;
    params.heads = 4;
    params.kv_heads = 2;
    params.kv_first = 1;
    params.kv_step = 3;
    params.q_len = queries;
    params.q = q.Array();
    params.sequences = &sequence;
    set(params);
    AttentionParams arrays = params;
    arrays.k_len = kTokens;
    arrays.head_dim = arrays.value_dim = kDim;
    arrays.k = k.Array(kTokens);
    arrays.v = v.Array(kTokens);
    arrays.k.strides[1] = arrays.v.strides[1] = 3 * kTokens * kDim;
    arrays.mask.causal = true;
    TokenRows found(DType::kFloat32, 4, queries, kDim), expected = found;
    Decode({}, cache, params, {.out = found.Out()});
    AttentionForward({}, arrays, {.out = expected.Out()});
    EXPECT_EQ(found.bytes, expected.bytes);
  };
  for (const std::int64_t queries : {1, 70}) {
    for (const RowMap map : AttentionMaps()) {
      check(queries, [&](DecodeParams& params) {
        params.map = map;
        params.top_k.k = 7;
      });
    }
    check(queries, [&](DecodeParams& params) { params.alpha = 0.7; });
    check(queries, [&](DecodeParams& params) {
      params.mask.visible = visible.data();
      std::copy_n(std::vector<std::int64_t>{0, 70 * kTokens, kTokens, 1}.begin(), 4,
                  params.mask.visible_strides);
    });
    check(queries, [&](DecodeParams& params) {
      params.mask.blocks = blocks.data();
      params.mask.block_q = 8;
      params.mask.block_k = 32;
      std::copy_n(std::vector<std::int64_t>{0, 90, 10, 1}.begin(), 4, params.mask.block_strides);
    });
    check(queries, [&](DecodeParams& params) { params.terms.bias = bias.Array(); });
  }
}

// A chunk's answers are the same bits whoever shares the call, here one with too few keys for the
// kernel of the other.
TEST(KvCacheDecode, ManyQueriesOfSeveralSequences) {
  const Case c{.slopes = true, .length_scale = true};
  constexpr std::int64_t kQueries = 70;
  const std::int64_t tokens[] = {100, 700}, begin[] = {3, 0};
  KvCache cache(ShapeOf(c));
  std::vector<KvCache::Sequence> sequences;
  for (const std::int64_t n : tokens) {
    sequences.push_back(cache.Create());
    const TokenRows k = Normal(2, c.dtype, 2, n, 24), v = Normal(3, c.dtype, 2, n, 16);
    cache.Append({}, sequences.back(), 0, k.Array(), v.Array(), n);
  }
  // Both in one array.
  Case both = c;
  both.kv_heads = 4;
  TokenRows q = Normal(1, c.dtype, 12, kQueries, 24, 2.0);
  TokenRows scales(DType::kFloat32, 12, kQueries, 1), slopes(DType::kFloat32, 12, 1, 1);
  for (std::int64_t i = 0; i < 12 * kQueries; ++i) scales.Set(i, 0.5 + 0.001 * i);
  for (std::int64_t i = 0; i < 12; ++i) slopes.Set(i, 0.01 * i);
  const auto run = [&](std::int64_t first, std::int64_t batch) {
    Answers answers(both, kQueries);
    const auto from = [&](const TokenRows& rows) {
      ConstArray4 array = rows.Array(first * 6 * rows.tokens);
      array.strides[0] = 6 * array.strides[1];
      return array;
    };
    DecodeParams params;
    params.sequences = sequences.data() + first;
    params.batch = batch;
    params.heads = 6;
    params.q_len = kQueries;
    params.q = from(q);
    params.begin = begin + first;
    params.terms.length_scale = from(scales);
    params.terms.alibi_slopes = from(slopes);
    const std::int64_t at = first * 6 * kQueries;
    MutableArray4 out = answers.out.Out();
    out.data = static_cast<std::byte*>(out.data) + at * 16 * 4;
    out.strides[0] = 6 * out.strides[1];
    Decode({}, cache, params,
           {.out = out,
            .tau = answers.tau.data() + at,
            .support_size = answers.support.data() + at,
            .entropy = answers.entropy.data() + at,
            .maximum = answers.maximum.data() + at});
    return answers;
  };
  const Answers together = run(0, 2), first = run(0, 1), second = run(1, 1);
  const auto half = static_cast<std::ptrdiff_t>(together.tau.size() / 2);
  for (const auto& of : {&Answers::tau, &Answers::entropy, &Answers::maximum}) {
    EXPECT_TRUE(
        std::equal((together.*of).begin(), (together.*of).begin() + half, (first.*of).begin()));
    EXPECT_TRUE(std::equal((together.*of).begin() + half, (together.*of).end(),
                           (second.*of).begin() + half));
  }
  for (std::int64_t i = 0; i < 12 * kQueries * 16; ++i) {
    ASSERT_EQ(together.out.At(i), (i < 6 * kQueries * 16 ? first : second).out.At(i)) << i;
  }
}

// Vectors keep the content of each sequence, too: every token is one number.
TEST(KvCache, HistoriesMatchPlainVectors) {
  constexpr std::int64_t kLayers = 2;
  const Case c{.head_dim = 4, .value_dim = 3, .kv_heads = 1, .group = 2};
  const std::uint64_t first = FromEnvironment("TSALLIS_SEED", 1);
  const std::uint64_t histories = FromEnvironment("TSALLIS_HISTORIES", 400);  // of 250 operations
  for (std::uint64_t seed = first; seed < first + histories; ++seed) {
    SCOPED_TRACE("TSALLIS_SEED=" + std::to_string(seed) +
                 " TSALLIS_HISTORIES=1 tsallis_tests --gtest_filter='KvCache.Histories*'");
    std::mt19937_64 random(seed);
    const auto below = [&](std::uint64_t n) { return static_cast<std::int64_t>(random() % n); };
    KvCache cache(ShapeOf(c, kLayers),
                  {.screen = seed % 2 == 0 ? KeyScreen::kNone : KeyScreen::kBytes});
    std::map<KvCache::Sequence, std::vector<double>> plain;
    double next = 0.25;
    const auto any = [&] { return std::next(plain.begin(), below(plain.size()))->first; };
    for (int step = 0; step < 250; ++step) {
      const std::int64_t what = plain.empty() ? 0 : below(12);
      if (what == 0) {
        plain[cache.Create()];
      } else if (what <= 5) {
        const KvCache::Sequence sequence = any();
        const std::int64_t count = below(3) == 0 ? below(150) : below(4);
        TokenRows k(c.dtype, 1, count, 4), v(c.dtype, 1, count, 3);
        for (std::int64_t i = 0; i < count; ++i, next += 0.25) {
          plain[sequence].push_back(next);
          for (std::int64_t x = 0; x < 4; ++x) k.Set(i * 4 + x, next + static_cast<double>(x));
          for (std::int64_t x = 0; x < 3; ++x) v.Set(i * 3 + x, -next);
        }
        for (std::int64_t layer = 0; layer < kLayers; ++layer) {
          cache.Append({.threads = 1}, sequence, layer, k.Array(), v.Array(), count);
        }
      } else if (what <= 7) {
        const KvCache::Sequence from = any();
        const auto length = below(plain[from].size() + 1);
        const KvCache::Sequence fork = cache.Fork(from, below(2) == 0 ? length : -1);
        const std::int64_t kept = cache.Length(fork);
        plain[fork].assign(plain[from].begin(), plain[from].begin() + kept);
      } else if (what <= 9) {
        const KvCache::Sequence sequence = any();
        const auto length = below(plain[sequence].size() + 3);
        cache.Truncate(sequence, length);
        plain[sequence].resize(std::min(plain[sequence].size(), static_cast<std::size_t>(length)));
      } else if (what == 10 && plain.size() > 2) {
        const KvCache::Sequence sequence = any();
        cache.Free(sequence);
        plain.erase(sequence);
      } else {
        const KvCache::Sequence sequence = any();
        const auto length = static_cast<std::int64_t>(plain[sequence].size());
        ASSERT_EQ(cache.Length(sequence), length);
        TokenRows k(c.dtype, 1, length, 4), v(c.dtype, 1, length, 3);
        cache.Read(sequence, below(kLayers), 0, length, k.Out(), v.Out());
        for (std::int64_t i = 0; i < length; ++i) {
          const double token = plain[sequence][static_cast<std::size_t>(i)];
          ASSERT_EQ(k.At(i * 4 + 3), token + 3.0);
          ASSERT_EQ(v.At(i * 3 + 1), -token);
        }
        if (length == 0) continue;
        const TokenRows q = Normal(seed, c.dtype, 2, 1, 4, 0.1);
        ASSERT_TRUE(OnCache(c, cache, sequence, q, 1).Same(OnArrays(c, q, k, v)));
      }
    }
    std::size_t pages = 0;
    for (const auto& [sequence, tokens] : plain) pages += (tokens.size() + 63) / 64;
    EXPECT_LE(cache.Use().pages, static_cast<std::int64_t>(pages));
    for (const auto& [sequence, tokens] : plain) cache.Free(sequence);
    EXPECT_EQ(cache.Use().pages, 0) << "all pages are given back";
    EXPECT_EQ(cache.Use().sequences, 0);
  }
}

TEST(KvCache, AForkSharesPagesAndABudgetHolds) {
  const Case c{.head_dim = 8, .value_dim = 8, .kv_heads = 1, .group = 1};
  const KvCache probe(ShapeOf(c));
  const std::int64_t page = probe.Use().page_bytes;
  KvCache cache(ShapeOf(c), {.screen = KeyScreen::kBytes, .max_bytes = 4 * page + 5});
  const TokenRows k = Normal(1, c.dtype, 1, 300, 8), v = Normal(2, c.dtype, 1, 300, 8);
  const KvCache::Sequence a = cache.Create();
  cache.Append({}, a, 0, k.Array(), v.Array(), 150);
  std::vector<KvCache::Sequence> forks;
  for (int i = 0; i < 100; ++i) forks.push_back(cache.Fork(a));
  EXPECT_EQ(cache.Use().pages, 3);
  EXPECT_EQ(cache.Use().shared_pages, 3);
  // The page that both would write to is copied.
  cache.Append({}, forks[0], 0, k.Array(150), v.Array(150), 1);
  EXPECT_EQ(cache.Use().pages, 4);
  const TokenRows q = Normal(3, c.dtype, 1, 1, 8);
  const Answers before = OnCache(c, cache, a, q);
  EXPECT_THROW(cache.Append({}, a, 0, k.Array(150), v.Array(150), 1), CacheFull);
  EXPECT_THROW(cache.Append({}, forks[0], 0, k.Array(151), v.Array(151), 100), CacheFull);
  EXPECT_EQ(cache.Length(a), 150);
  EXPECT_EQ(cache.Length(forks[0]), 151);
  EXPECT_EQ(cache.Use().pages, 4);
  EXPECT_TRUE(OnCache(c, cache, a, q).Same(before));
  cache.Free(forks[0]);
  cache.Append({}, forks[1], 0, k.Array(150), v.Array(150), 40);
  EXPECT_EQ(cache.Length(forks[1]), 190);
}

TEST(KvCache, SequencesAreUsedAtTheSameTime) {
  const Case c{.tokens = 400, .head_dim = 16, .value_dim = 16};
  const TokenRows q = Normal(1, c.dtype, 6, 1, 16), k = Normal(2, c.dtype, 2, 600, 16);
  const TokenRows v = Normal(3, c.dtype, 2, 600, 16);
  KvCache cache(ShapeOf(c));
  const KvCache::Sequence prompt = cache.Create();
  cache.Append({.threads = 1}, prompt, 0, k.Array(), v.Array(), 400);
  const Answers of_prompt = OnCache(c, cache, prompt, q);
  std::vector<KvCache::Sequence> forks;
  for (int i = 0; i < 4; ++i) forks.push_back(cache.Fork(prompt));
  std::vector<std::thread> threads;
  std::vector<bool> same(forks.size() + 1, true);
  std::vector<std::vector<Answers>> found(forks.size());
  for (std::size_t t = 0; t < forks.size(); ++t) {
    threads.emplace_back([&, t] {
      for (std::int64_t i = 0; i < 100; ++i) {
        cache.Append({.threads = 1}, forks[t], 0, k.Array(400 + i), v.Array(400 + i), 1);
        found[t].push_back(OnCache(c, cache, forks[t], q));
      }
    });
  }
  bool reads = true;
  for (int i = 0; i < 50; ++i) reads = OnCache(c, cache, prompt, q).Same(of_prompt) && reads;
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(reads);
  for (const auto& answers : found) {
    for (std::size_t i = 0; i < answers.size(); ++i) EXPECT_TRUE(answers[i].Same(found[0][i]));
  }
}

TEST(KvCache, MistakesAreNamed) {
  const Case c{.head_dim = 8, .value_dim = 8};
  EXPECT_EQ(ErrorOf([] { KvCache cache({.head_dim = 600}); }),
            "shape.head_dim: expected a size from 1 to 512, got 600");
  EXPECT_EQ(ErrorOf([] { KvCache cache({.dtype = DType::kFloat64}); }),
            "shape.dtype: expected float32, bfloat16 or float16, got float64");
  EXPECT_NE(ErrorOf([&] { KvCache cache(ShapeOf(c), {.max_bytes = 100}); }).find("at least a page"),
            std::string::npos);
  KvCache cache(ShapeOf(c));
  const KvCache::Sequence a = cache.Create();
  const TokenRows k = Normal(1, c.dtype, 2, 20, 8), v = Normal(2, c.dtype, 2, 20, 8);
  const TokenRows half = Normal(1, DType::kBFloat16, 2, 20, 8);
  cache.Append({}, a, 0, k.Array(), v.Array(), 10);
  EXPECT_EQ(ErrorOf([&] { cache.Append({}, 77, 0, k.Array(), v.Array(), 1); }),
            "sequence: expected one that was created and not freed, got 77");
  EXPECT_EQ(ErrorOf([&] { cache.Append({}, a, 1, k.Array(), v.Array(), 1); }),
            "layer: expected one from 0 to 0, got 1");
  EXPECT_EQ(ErrorOf([&] { cache.Append({}, a, 0, half.Array(), v.Array(), 1); }),
            "k: expected the dtype of the cache, float32, got bfloat16");
  EXPECT_EQ(ErrorOf([&] { cache.Fork(a, 11); }),
            "length: expected at most the 10 tokens of the sequence, got 11");
  EXPECT_EQ(ErrorOf([&] { cache.Truncate(a, -1); }), "length: expected 0 or more, got -1");
  EXPECT_EQ(ErrorOf([&] { cache.Read(a, 0, 4, 11, {}, {}); }),
            "tokens: expected 0 <= begin <= end <= 10, got [4, 11)");
  const TokenRows q = Normal(3, c.dtype, 6, 1, 8), many = Normal(3, c.dtype, 6, 11, 8);
  Case wrong = c;
  wrong.alpha = -1.0;
  EXPECT_EQ(ErrorOf([&] { OnCache(wrong, cache, a, q); }),
            "alpha: expected a finite number > 0, got -1.000000");
  wrong.alpha = 5.0;
  EXPECT_EQ(ErrorOf([&] { OnCache(wrong, cache, a, q); }),
            "certificate: expected none of this statistic with alpha outside [1.1, 4] and not 1, "
            "got a call for it");
  DecodeParams heads;
  EXPECT_EQ(heads.q_len, 1);
  heads.batch = 1;
  heads.sequences = &a;
  heads.q = q.Array();
  heads.q_len = 1;
  heads.heads = 6;
  heads.kv_heads = heads.kv_step = 2;
  EXPECT_EQ(ErrorOf([&] { Decode({}, cache, heads, {}); }),
            "kv_heads: expected some of the cache's 2 key heads, got 2 from 0 on, 2 apart");
  wrong.mode.keys = DecodeKeys::kFirstAndLast;
  EXPECT_EQ(ErrorOf([&] { OnCache(wrong, cache, a, q, 0, 1, false); }),
            "mode: expected the exact one with alpha outside [1.1, 4] and not 1, got another");
  EXPECT_EQ(ErrorOf([&] { OnCache(c, cache, a, many); }),
            "q_len: expected at most the 10 tokens of sequences[0], got 11");
  EXPECT_EQ(ErrorOf([&] { OnCache(c, cache, a, half); }),
            "q: expected the dtype of the cache, float32, got bfloat16");
  cache.Free(a);
  EXPECT_NE(ErrorOf([&] { cache.Length(a); }), "no error");
}

}  // namespace
}  // namespace tsallis
