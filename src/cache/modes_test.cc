// Modes of decoding against plain definitions in double: which pages are chosen, what is lost, and
// what certificates promise.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "cache/testing/cases.h"
#include "core/every_target.h"
#include "tsallis/kv_cache.h"

namespace tsallis {
namespace {

using namespace cache_testing;
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr std::int64_t kPage = KvCache::kPage;

// One query head, written out in double.
struct Plain {
  const Case& c;
  const TokenRows& q;
  const TokenRows& k;
  const TokenRows& v;
  std::int64_t h;

  std::int64_t Position() const { return k.tokens - 1; }
  std::int64_t Begin() const { return std::max(c.begin, c.left < 0 ? 0 : Position() - c.left); }
  double Factor() const {
    const double scale = 1.0 / std::sqrt(static_cast<double>(c.head_dim));
    if (!c.length_scale) return scale;
    return scale * static_cast<double>(h % 3 == 2 ? -1.5F : 0.5F + 0.3F * static_cast<float>(h));
  }
  double Slope() const {
    return c.slopes && h % 2 == 0 ? static_cast<double>(0.05F * static_cast<float>(h + 1)) : 0.0;
  }
  double Sink() const {
    return c.sink ? 0.7 * static_cast<double>(h) - 1.0 + c.sink_shift : -kInfinity;
  }
  double Query(std::int64_t x) const { return q.At(h * c.head_dim + x); }
  double Key(std::int64_t j, std::int64_t x) const {
    return k.At((h / c.group * k.tokens + j) * c.head_dim + x);
  }
  // The score of factor <q, k> at a distance.
  double Score(double x, double distance, double nearest) const {
    if (c.softcap != 0.0) x = c.softcap * std::tanh(x / c.softcap);
    if (c.scale_invariant != 0.0) {
      const double a = std::sqrt(2.0 * std::log(distance / c.scale_invariant + 1.0) + 1.0);
      const double b = std::sqrt(2.0 * std::log(nearest / c.scale_invariant + 1.0) + 1.0);
      const double best = std::clamp(x / 2.0, b, a);
      x = best * x + 1.0 - best * best;
    }
    return x - Slope() * nearest;
  }
  double Score(std::int64_t j) const {
    double dot = 0.0;
    for (std::int64_t x = 0; x < c.head_dim; ++x) dot += Query(x) * Key(j, x);
    const auto distance = static_cast<double>(Position() - j);
    return Score(Factor() * dot, distance, distance);
  }
  // Weights of keys, and what the sink leaves them.
  std::vector<double> Weights(const std::vector<std::int64_t>& keys) const {
    std::vector<double> s;
    for (const std::int64_t j : keys) s.push_back(Score(j));
    s.push_back(Sink());
    const double top = *std::max_element(s.begin(), s.end());
    double low = -1.0, high = 0.0;  // of tau, relative to the largest z
    const auto weight = [&](double score) {
      if (c.softmax) return std::exp(score - top);
      const double u = (c.alpha - 1.0) * (score - top) - low;
      return u > 0.0 ? std::pow(u, 1.0 / (c.alpha - 1.0)) : 0.0;
    };
    const auto sum = [&] {
      double total = 0.0;
      for (const double score : s) total += weight(score);
      return total;
    };
    for (int step = 0; step < 60 && !c.softmax; ++step) {
      const double middle = 0.5 * (low + high), before = low;
      low = middle;
      if (sum() < 1.0) {
        high = middle;
        low = before;
      }
    }
    const double total = sum();
    std::vector<double> p;
    for (std::size_t i = 0; i < keys.size(); ++i) p.push_back(weight(s[i]) / total);
    return p;
  }
  std::vector<double> Out(const std::vector<std::int64_t>& keys) const {
    const std::vector<double> p = Weights(keys);
    std::vector<double> out(static_cast<std::size_t>(c.value_dim));
    for (std::size_t i = 0; i < keys.size(); ++i) {
      for (std::int64_t x = 0; x < c.value_dim; ++x) {
        out[static_cast<std::size_t>(x)] +=
            p[i] * v.At((h / c.group * k.tokens + keys[i]) * c.value_dim + x);
      }
    }
    return out;
  }
  std::vector<std::int64_t> All() const {
    std::vector<std::int64_t> keys;
    for (std::int64_t j = Begin(); j < k.tokens; ++j) keys.push_back(j);
    return keys;
  }
  // A page's rank, by all of its keys.
  double Rank(std::int64_t page) const {
    const std::int64_t begin = std::max(page * kPage, Begin()), end = (page + 1) * kPage;
    double bound = 0.0, mean = 0.0, variance = 0.0;
    for (std::int64_t x = 0; x < c.head_dim; ++x) {
      double least = kInfinity, most = -kInfinity, sum = 0.0, squares = 0.0;
      for (std::int64_t j = page * kPage; j < end; ++j) {
        least = std::min(least, Key(j, x));
        most = std::max(most, Key(j, x));
        sum += Key(j, x) / kPage;
      }
      for (std::int64_t j = page * kPage; j < end; ++j) {
        squares += (Key(j, x) - sum) * (Key(j, x) - sum) / kPage;
      }
      const double query = Factor() * Query(x);
      bound += std::max(query * least, query * most);
      mean += query * sum;
      variance += query * query * squares;
    }
    const auto near = static_cast<double>(Position() - end + 1);
    if (c.mode.keys == DecodeKeys::kTopPages) {
      return Score(bound, static_cast<double>(Position() - begin), near);
    }
    // The median of the largest of 64 normal numbers; 0.9893 = 0.5^(1/64).
    const double deviations = 2.2989;
    const auto middle = static_cast<double>(Position() - (begin + end - 1) / 2);
    return Score(mean + deviations * std::sqrt(variance), middle, middle);
  }
  // The keys that a mode reads; none where two pages are nearly equal.
  std::vector<std::int64_t> Chosen() const {
    std::vector<std::int64_t> keys;
    if (c.mode.keys == DecodeKeys::kFirstAndLast) {
      const std::int64_t first = std::min(c.mode.first, c.mode.budget - 1);  // the newest is seen
      for (const std::int64_t j : All()) {
        if (j - Begin() < first || k.tokens - j <= c.mode.budget - first) {
          keys.push_back(j);
        }
      }
      return keys;
    }
    std::vector<std::pair<double, std::int64_t>> ranks;
    const std::int64_t newest = Position() / kPage;
    for (std::int64_t page = Begin() / kPage; page < newest; ++page) {
      ranks.emplace_back(-Rank(page), page);
    }
    std::sort(ranks.begin(), ranks.end());
    const std::size_t kept = std::min<std::size_t>(
        ranks.size(),
        static_cast<std::size_t>(std::max<std::int64_t>(c.mode.budget / kPage, 1) - 1));
    if (kept > 0 && kept < ranks.size() && ranks[kept].first - ranks[kept - 1].first < 1e-3) {
      return {};
    }
    std::vector<std::int64_t> pages{newest};
    for (std::size_t i = 0; i < kept; ++i) pages.push_back(ranks[i].second);
    for (const std::int64_t j : All()) {
      if (std::find(pages.begin(), pages.end(), j / kPage) != pages.end()) keys.push_back(j);
    }
    return keys;
  }
};

// The tokens of k and v, after a history of wrong tokens, forks and truncations.
KvCache::Sequence Build(KvCache& cache, const TokenRows& k, const TokenRows& v) {
  const Context one{.threads = 1};
  const KvCache::Sequence first = cache.Create();
  const std::int64_t cut = k.tokens / 2;
  cache.Append(one, first, 0, k.Array(), v.Array(), cut);
  // Keys that are gone later: 100 times as large.
  const TokenRows wrong = Normal(99, k.dtype, k.heads, 90, k.columns, 100.0);
  const TokenRows values = Normal(98, k.dtype, k.heads, 90, v.columns, 100.0);
  cache.Append(one, first, 0, wrong.Array(), values.Array(), 90);
  const KvCache::Sequence fork = cache.Fork(first, cut);
  cache.Append(one, fork, 0, wrong.Array(), values.Array(), 20);
  cache.Truncate(fork, cut);
  cache.Free(first);
  for (std::int64_t at = cut; at < k.tokens;) {
    const std::int64_t count = std::min<std::int64_t>(k.tokens - at, 1 + at * 7 % 50);
    cache.Append(one, fork, 0, k.Array(at), v.Array(at), count);
    at += count;
  }
  return fork;
}

constexpr KvCacheOptions kAll{.ranges = true, .moments = true};

struct Checked {
  std::int64_t chosen = 0, exact = 0, unproved = 0;
};

void CheckSelection(const Case& c, Checked* checked) {
  SCOPED_TRACE("keys " + std::to_string(static_cast<int>(c.mode.keys)) + " budget " +
               std::to_string(c.mode.budget));
  const TokenRows q = Normal(1, c.dtype, c.kv_heads * c.group, 1, c.head_dim, c.spread);
  const TokenRows k = Normal(2, c.dtype, c.kv_heads, c.tokens, c.head_dim);
  const TokenRows v = Normal(3, c.dtype, c.kv_heads, c.tokens, c.value_dim);
  KvCacheOptions options = kAll;
  Case exact = c;
  exact.mode = {};
  const double rounding = c.dtype == DType::kFloat32 ? 1e-4 : 2e-2;
  for (const KeyScreen screen : {KeyScreen::kBytes, KeyScreen::kNone}) {
    options.screen = screen;
    KvCache cache(ShapeOf(c), options);
    const KvCache::Sequence sequence = Build(cache, k, v);
    const Answers found = OnCache(c, cache, sequence, q), all = OnCache(exact, cache, sequence, q);
    EXPECT_TRUE(OnCache(c, cache, sequence, q, 0, 3).Same(found)) << "any number of threads";
    for (std::int64_t h = 0; h < c.kv_heads * c.group; ++h) {
      const Plain plain{c, q, k, v, h};
      const std::vector<std::int64_t> keys = plain.Chosen();
      if (keys.empty()) continue;
      const auto at = static_cast<std::size_t>(h);
      ++checked->chosen;
      ASSERT_EQ(found.scored[at], static_cast<std::int64_t>(keys.size()));
      const std::vector<double> out = plain.Out(keys), weights = plain.Weights(plain.All());
      double lost = 1.0, least = 0.0;
      for (const double p : weights) least += p;
      lost = least;
      for (const std::int64_t j : keys)
        lost -= weights[static_cast<std::size_t>(j - plain.Begin())];
      EXPECT_NEAR(found.lost[at], lost, 1e-5);
      bool same = true;
      for (std::int64_t x = 0; x < c.value_dim; ++x) {
        EXPECT_NEAR(found.out.At(h * c.value_dim + x), out[static_cast<std::size_t>(x)], rounding);
        same = same && found.out.At(h * c.value_dim + x) == all.out.At(h * c.value_dim + x);
      }
      if (c.softmax) {
        EXPECT_GE(found.certificate[at] + 1e-6, lost);
        EXPECT_LE(found.certificate[at], 1.0);
        continue;
      }
      // The largest score that was not read is not above the bound.
      double most = -kInfinity;
      for (const std::int64_t j : plain.All()) {
        if (!std::binary_search(keys.begin(), keys.end(), j)) most = std::max(most, plain.Score(j));
      }
      EXPECT_GE(found.certificate[at], (c.alpha - 1.0) * most - found.tau[at] - 1e-6);
      if (found.certificate[at] <= 0.0) {
        ++checked->exact;
        EXPECT_TRUE(same) << "what is certified has the bits of the exact answer";
        EXPECT_EQ(found.tau[at], all.tau[at]);
      } else {
        ++checked->unproved;
      }
    }
  }
}

TEST(KvCacheModes, PagesAreThoseOfThePlainDefinition) {
  Checked checked;
  for (const DecodeKeys keys :
       {DecodeKeys::kTopPages, DecodeKeys::kGaussianPages, DecodeKeys::kFirstAndLast}) {
    const auto check = [&](Case c) {
      for (const bool softmax : {false, true}) {
        c.softmax = softmax;
        c.mode.keys = keys;
        CheckSelection(c, &checked);
      }
    };
    for (const std::int64_t budget : {1, 64, 200, 512, 5000}) check({.mode = {.budget = budget}});
    for (const std::int64_t tokens : {1, 64, 65, 640}) {
      check({.tokens = tokens, .mode = {.budget = 256}});
    }
    check({.dtype = DType::kBFloat16, .head_dim = 33, .mode = {.budget = 320}});
    check({.slopes = true, .mode = {.budget = 256}});
    check({.length_scale = true, .sink = true, .mode = {.budget = 256}});
    check({.scale_invariant = 10.0, .mode = {.budget = 256}});
    check({.alpha = 2.0, .softcap = 3.0, .left = 500, .mode = {.budget = 256, .first = 0}});
    check({.begin = 77, .mode = {.budget = 256, .first = 30}});
  }
  EXPECT_GT(checked.chosen, 500) << "few pages are nearly equal";
  EXPECT_GT(checked.exact, 40);
  EXPECT_GT(checked.unproved, 40);
}

void CheckWithin(const Case& c, std::int64_t* scored) {
  SCOPED_TRACE("epsilon " + std::to_string(c.mode.epsilon));
  const TokenRows q = Normal(1, c.dtype, c.kv_heads * c.group, 1, c.head_dim, c.spread);
  const TokenRows k = Normal(2, c.dtype, c.kv_heads, c.tokens, c.head_dim);
  const TokenRows v = Normal(3, c.dtype, c.kv_heads, c.tokens, c.value_dim);
  const double rounding = c.dtype == DType::kFloat32 ? 1e-4 : 2e-2;
  double largest = 0.0;
  for (std::int64_t i = 0; i < c.kv_heads * c.tokens * c.value_dim; ++i) {
    largest = std::max(largest, std::abs(v.At(i)));
  }
  ForEachTarget([&](const std::string& target) {
    SCOPED_TRACE(target);
    for (const KeyScreen screen : {KeyScreen::kBytes, KeyScreen::kNone}) {
      KvCache cache(ShapeOf(c), {.screen = screen});
      const KvCache::Sequence sequence = Build(cache, k, v);
      const Answers found = OnCache(c, cache, sequence, q);
      EXPECT_TRUE(OnCache(c, cache, cache.Fork(sequence), q, 0, 3).Same(found));
      for (std::int64_t h = 0; h < c.kv_heads * c.group; ++h) {
        const Plain plain{c, q, k, v, h};
        const auto at = static_cast<std::size_t>(h);
        EXPECT_LE(found.certificate[at], c.mode.epsilon);
        EXPECT_LE(found.lost[at], found.certificate[at] * (1.0 + 1e-5));
        const std::vector<double> out = plain.Out(plain.All());
        for (std::int64_t x = 0; x < c.value_dim; ++x) {
          EXPECT_NEAR(found.out.At(h * c.value_dim + x), out[static_cast<std::size_t>(x)],
                      2.0 * found.certificate[at] * largest + rounding);
        }
        *scored += found.scored[at];
      }
    }
  });
}

TEST(KvCacheModes, WithinEpsilonHolds) {
  std::int64_t scored = 0;
  const auto check = [&](Case c) {
    c.softmax = true;
    c.mode.keys = DecodeKeys::kWithin;
    for (const double epsilon : {0.9, 0.1, 1e-2, 1e-3, 1e-9}) {
      c.mode.epsilon = epsilon;
      CheckWithin(c, &scored);
    }
  };
  check({});
  check({.spread = 0.0});  // flat
  check({.dtype = DType::kBFloat16, .spread = 8.0});
  check({.dtype = DType::kFloat16, .tokens = 130, .head_dim = 5});
  check({.tokens = 1});
  check({.slopes = true, .sink = true});
  check({.tokens = 3000, .slopes = true});
  check({.length_scale = true, .scale_invariant = 10.0, .begin = 100});
  check({.spread = 4.0, .softcap = 5.0, .left = 333});
  std::int64_t few = 0;
  Case sharp{.tokens = 3000, .spread = 6.0, .softmax = true};
  sharp.mode = {.keys = DecodeKeys::kWithin, .epsilon = 1e-2};
  CheckWithin(sharp, &few);
  EXPECT_GT(few, 0);
}

// Nothing has to be read where the sink has nearly all: the rest is the sink's, as it is exactly.
TEST(KvCacheModes, WithinEpsilonOfASinkThatHasNearlyAll) {
  Case c{.spread = 0.3, .softmax = true, .sink = true, .sink_shift = 20.0};
  const TokenRows q = Normal(1, c.dtype, 6, 1, c.head_dim, c.spread);
  const TokenRows k = Normal(2, c.dtype, 2, c.tokens, c.head_dim);
  const TokenRows v = Normal(3, c.dtype, 2, c.tokens, c.value_dim);
  const Answers exact = OnArrays(c, q, k, v);
  c.mode = {.keys = DecodeKeys::kWithin, .epsilon = 0.1};
  KvCache cache(ShapeOf(c));
  const Answers found = OnCache(c, cache, Build(cache, k, v), q);
  for (std::size_t h = 0; h < 6; ++h) {
    EXPECT_EQ(found.scored[h], 0);
    EXPECT_GT(found.certificate[h], 0.0);
    EXPECT_NEAR(found.tau[h], exact.tau[h], 1e-4);
    EXPECT_EQ(found.out.At(static_cast<std::int64_t>(h) * c.value_dim), 0.0);
  }
}

TEST(KvCacheModes, WithinEpsilonReadsFewKeysOfASharpHead) {
  Case c{.dtype = DType::kBFloat16, .tokens = 8000, .head_dim = 64, .value_dim = 64, .spread = 8.0};
  c.softmax = true;
  const TokenRows q = Normal(1, c.dtype, 6, 1, 64, c.spread),
                  k = Normal(2, c.dtype, 2, c.tokens, 64);
  const TokenRows v = Normal(3, c.dtype, 2, c.tokens, 64);
  KvCache cache(ShapeOf(c));
  const KvCache::Sequence sequence = Build(cache, k, v);
  const Answers all = OnCache(c, cache, sequence, q);
  std::int64_t before = 0;
  for (const double epsilon : {0.5, 0.1, 0.01, 1e-4}) {
    c.mode = {.keys = DecodeKeys::kWithin, .epsilon = epsilon};
    const Answers found = OnCache(c, cache, sequence, q);
    std::int64_t scored = 0, bytes = 0, exact_bytes = 0;
    for (std::size_t i = 0; i < found.scored.size(); ++i) {
      scored += found.scored[i];
      bytes += found.bytes_read[i];
      exact_bytes += all.bytes_read[i];
    }
    EXPECT_GT(scored, before) << "a smaller epsilon reads more";
    EXPECT_LT(scored, 6 * 8000 / 2);
    EXPECT_LT(bytes, exact_bytes);
    before = scored;
  }
}

TEST(KvCacheModes, KeysThatAreNotFinite) {
  const auto answers = [](DecodeMode mode, bool softmax, double value, double softcap = 0.0) {
    Case c{.tokens = 900, .softmax = softmax, .softcap = softcap, .mode = mode};
    const TokenRows q = Normal(1, c.dtype, 6, 1, 24), v = Normal(3, c.dtype, 2, 900, 16);
    TokenRows k = Normal(2, c.dtype, 2, 900, 24);
    k.Set(300 * 24 + 5, value);  // of key head 0
    KvCache cache(ShapeOf(c), kAll);
    return OnCache(c, cache, Build(cache, k, v), q);
  };
  for (const bool softmax : {false, true}) {
    // A page with such a key comes first.
    for (const DecodeKeys keys : {DecodeKeys::kTopPages, DecodeKeys::kGaussianPages}) {
      const Answers found = answers({.keys = keys, .budget = 128}, softmax, std::nan(""));
      for (std::int64_t h = 0; h < 6; ++h) {
        EXPECT_EQ(std::isnan(found.out.At(h * 16)), h < 3);
      }
    }
    const Answers found =
        answers({.keys = DecodeKeys::kFirstAndLast, .budget = 128}, softmax, std::nan(""));
    for (std::size_t h = 0; h < 6; ++h) {
      EXPECT_FALSE(std::isnan(found.out.At(static_cast<std::int64_t>(h) * 16)));
      EXPECT_EQ(std::isnan(found.lost[h]), h < 3) << "and nothing is promised";
      if (h < 3) {
        EXPECT_EQ(found.certificate[h], softmax ? 1.0 : kInfinity);
      }
    }
  }
  for (const double value : {std::nan(""), kInfinity, -kInfinity, 1e30, -1e38}) {
    for (const double softcap : {0.0, 5.0}) {
      const Answers found = answers({.keys = DecodeKeys::kWithin}, true, value, softcap);
      const Answers exact = answers({}, true, value, softcap);
      for (std::int64_t h = 0; h < 6; ++h) {
        EXPECT_EQ(std::isnan(found.out.At(h * 16)), std::isnan(exact.out.At(h * 16)));
        const auto at = static_cast<std::size_t>(h);
        EXPECT_TRUE(found.lost[at] <= found.certificate[at] || std::isnan(found.lost[at]));
      }
    }
  }
}

TEST(KvCacheModes, DistanceLeavesKeysUnread) {
  // Heads 0, 2 and 4 have slopes, each with a key head of its own.
  std::vector<std::int64_t> bytes;
  for (const std::int64_t tokens : {4000, 16000}) {
    const Case c{.tokens = tokens, .kv_heads = 6, .group = 1, .slopes = true};
    const TokenRows q = Normal(1, c.dtype, 6, 1, 24, 2.0), k = Normal(2, c.dtype, 6, tokens, 24);
    const TokenRows v = Normal(3, c.dtype, 6, tokens, 16);
    KvCache cache(ShapeOf(c));
    const KvCache::Sequence sequence = cache.Create();
    cache.Append({.threads = 1}, sequence, 0, k.Array(), v.Array(), tokens);
    const Answers found = OnCache(c, cache, sequence, q);
    EXPECT_TRUE(found.Same(OnArrays(c, q, k, v)));
    EXPECT_TRUE(OnCache(c, cache, Build(cache, k, v), q).Same(found))
        << "larger keys are forgotten";
    for (std::size_t h = 0; h < 6; ++h) {
      EXPECT_LE(found.certificate[h], 0.0);
      EXPECT_EQ(found.bytes_read[h] > tokens * 24, h % 2 == 1) << h;
      if (h % 2 == 0) bytes.push_back(found.bytes_read[h]);
    }
    // The norm of the largest key counts, and one that is not finite is found.
    TokenRows broken = Normal(2, c.dtype, 6, tokens, 24);
    broken.Set(3 * 24, std::nan(""));
    const Answers nan = OnCache(c, cache, Build(cache, broken, v), q);
    EXPECT_TRUE(std::isnan(nan.out.At(0)));
  }
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_LT(static_cast<double>(bytes[i + 3]), 1.2 * static_cast<double>(bytes[i]))
        << "flat in the number of keys";
  }
}

// Keys along the query have the products that their norms allow: the last key with a weight is as
// near to the first that is left out as can be.
TEST(KvCacheModes, DistanceLeavesNoKeyOutThatHasAWeight) {
  for (std::int64_t tokens = 600; tokens < 680; tokens += 5) {
    for (const double scale_invariant : {0.0, 40.0}) {
      Case c{.tokens = tokens, .head_dim = 1, .value_dim = 4, .kv_heads = 1, .group = 1};
      c.alpha = 1.1;
      c.slopes = true;
      c.scale_invariant = scale_invariant;
      TokenRows q = Normal(1, c.dtype, 1, 1, 1), k = Normal(2, c.dtype, 1, tokens, 1);
      const TokenRows v = Normal(3, c.dtype, 1, tokens, 4);
      q.Set(0, 1.0);
      for (std::int64_t j = 0; j < tokens; ++j) k.Set(j, 1.0);
      KvCache cache(ShapeOf(c));
      const KvCache::Sequence sequence = cache.Create();
      cache.Append({.threads = 1}, sequence, 0, k.Array(), v.Array(), tokens);
      const Answers found = OnCache(c, cache, sequence, q);
      EXPECT_TRUE(found.Same(OnArrays(c, q, k, v))) << tokens;
      EXPECT_GT(found.support[0], KvCache::kPage);
      EXPECT_LT(found.scored[0], tokens / 2);
      EXPECT_LE(found.certificate[0], 0.0);
    }
  }
}

TEST(KvCacheModes, BytesReadAreWhatThePagesSay) {
  const Case c{.dtype = DType::kBFloat16, .tokens = 700, .head_dim = 16, .value_dim = 8};
  const TokenRows q = Normal(1, c.dtype, 6, 1, 16), k = Normal(2, c.dtype, 2, 700, 16);
  const TokenRows v = Normal(3, c.dtype, 2, 700, 8);
  const auto sum = [](const std::vector<std::int64_t>& x) {
    std::int64_t total = 0;
    for (const std::int64_t value : x) total += value;
    return total;
  };
  for (const KeyScreen screen : {KeyScreen::kBytes, KeyScreen::kNone}) {
    KvCache cache(ShapeOf(c), {.screen = screen, .ranges = true});
    const KvCache::Sequence sequence = Build(cache, k, v);
    const Answers exact = OnCache(c, cache, sequence, q);
    // For both key heads: 11 pages with 12 bytes beside every key's, or all rows.
    const std::int64_t screened = 2 * 11 * 64 * (16 + 12), rows = 2 * 700 * 32;
    const std::int64_t values = sum(exact.support) * 16;
    EXPECT_EQ(sum(exact.bytes_read), screen == KeyScreen::kBytes
                                         ? screened + sum(exact.scored) * 32 + values
                                         : rows + values);
    Case softmax = c;
    softmax.softmax = true;
    EXPECT_EQ(sum(OnCache(softmax, cache, sequence, q).bytes_read), rows + 2 * 700 * 16);
    Case top = c;
    top.mode = {.keys = DecodeKeys::kTopPages, .budget = 128};
    const Answers few = OnCache(top, cache, sequence, q);
    EXPECT_EQ(sum(few.bytes_read), 2 * 11 * 8 * 17 + sum(few.scored) * 32 + sum(few.support) * 16);
  }
}

TEST(KvCacheModes, MistakesAreNamed) {
  const Case c{.tokens = 10};
  const TokenRows q = Normal(1, c.dtype, 6, 1, 24), k = Normal(2, c.dtype, 2, 10, 24);
  const TokenRows v = Normal(3, c.dtype, 2, 10, 16);
  const auto error = [&](const KvCacheOptions& options, const DecodeMode& mode) {
    KvCache cache(ShapeOf(c), options);
    Case with = c;
    with.mode = mode;
    const KvCache::Sequence sequence = cache.Create();
    cache.Append({.threads = 1}, sequence, 0, k.Array(), v.Array(), 10);
    return ErrorOf([&] { OnCache(with, cache, sequence, q); });
  };
  EXPECT_EQ(error({}, {.keys = DecodeKeys::kTopPages}),
            "mode: expected a cache that keeps ranges, got one without");
  EXPECT_EQ(error({}, {.keys = DecodeKeys::kGaussianPages}),
            "mode: expected a cache that keeps moments, got one without");
  EXPECT_EQ(error(kAll, {.keys = DecodeKeys::kGaussianPages, .quantile = 1.0}),
            "mode.quantile: expected a number between 0 and 1, got 1.000000");
  EXPECT_EQ(error(kAll, {.keys = DecodeKeys::kTopPages, .budget = 0}),
            "mode.budget: expected 1 token or more, got 0");
  EXPECT_EQ(error({}, {.keys = DecodeKeys::kFirstAndLast, .first = -1}),
            "mode.first: expected 0 or more, got -1");
  for (const double epsilon : {0.0, 1.0, -0.5, std::nan("")}) {
    EXPECT_NE(error({}, {.keys = DecodeKeys::kWithin, .epsilon = epsilon}).find("mode.epsilon"),
              std::string::npos);
  }
  EXPECT_NE(error({}, {.keys = static_cast<DecodeKeys>(77)}).find("mode.keys"), std::string::npos);
}

}  // namespace
}  // namespace tsallis
