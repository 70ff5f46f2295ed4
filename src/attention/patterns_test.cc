#include "tsallis/patterns.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tsallis/error.h"

namespace tsallis {
namespace {

// The definition of patterns.h, but for the random part.
bool Shows(const AttentionPattern& p, std::int64_t i, std::int64_t j) {
  if (p.causal && j > i) return false;
  const std::int64_t apart = std::abs(i - j);
  if (p.window > 0 && (p.causal ? i - j < p.window : 2 * apart <= p.window)) return true;
  if (i < p.global_tokens || j < p.global_tokens) return true;
  if (p.stride > 0 && apart % p.stride == 0) return true;
  return p.segment > 0 &&
         (i / p.segment == j / p.segment || j % p.segment >= p.segment - p.summary);
}

std::int64_t Ceiling(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

bool At(const PatternMask& mask, std::int64_t r, std::int64_t j) {
  const std::int64_t columns = Ceiling(mask.k_len, mask.block_k);
  const auto block = static_cast<std::size_t>(r / mask.block_q * columns + j / mask.block_k);
  if (mask.blocks[block] == 0) return false;
  return !mask.cut || mask.elements[static_cast<std::size_t>(r * mask.k_len + j)] != 0;
}

std::vector<AttentionPattern> Patterns(bool causal) {
  return {
      {.causal = causal, .window = 1},
      {.causal = causal, .window = 7},
      {.causal = causal, .window = 8},
      {.causal = causal, .global_tokens = 3},
      Longformer(6, 2, causal),
      StridedPattern(1, causal),
      StridedPattern(5, causal),
      FixedPattern(8, 2, causal),
      FixedPattern(7, 0, causal),
      FixedPattern(6, 6, causal),
      {.causal = causal, .window = 3, .global_tokens = 1, .stride = 9, .segment = 4, .summary = 1}};
}

TEST(Patterns, FollowTheDefinitionPairByPair) {
  for (const bool causal : {false, true}) {
    for (const AttentionPattern& pattern : Patterns(causal)) {
      for (const std::int64_t k_len : {1, 5, 33}) {
        for (const auto& [q_len, alignment] :
             {std::pair(k_len, Alignment::kEnd),
              std::pair(std::min<std::int64_t>(k_len, 4), Alignment::kEnd),
              std::pair(k_len + 6, Alignment::kStart)}) {
          const PatternMask mask = MaskOf(pattern, q_len, k_len, 4, 8, alignment);
          const std::int64_t shift = alignment == Alignment::kEnd ? k_len - q_len : 0;
          std::int64_t visible = 0;
          bool cut = false;
          for (std::int64_t r = 0; r < q_len; ++r) {
            for (std::int64_t j = 0; j < k_len; ++j) {
              const bool expected = Shows(pattern, r + shift, j);
              ASSERT_EQ(At(mask, r, j), expected) << r << " " << j << " of " << k_len;
              visible += expected ? 1 : 0;
              const auto block = static_cast<std::size_t>(r / 4 * Ceiling(k_len, 8) + j / 8);
              cut = cut || (mask.blocks[block] == 1 && !expected);
            }
          }
          EXPECT_EQ(mask.visible, visible);
          EXPECT_EQ(mask.cut, cut);
          EXPECT_EQ(mask.elements.empty(), !cut);
        }
      }
    }
  }
}

// Key blocks that a block of queries sees in full where the rest of the pattern shows nothing.
std::set<std::int64_t> DrawnBlocks(const AttentionPattern& pattern, std::int64_t block,
                                   std::int64_t n) {
  const PatternMask mask = MaskOf(pattern, n, n, pattern.random_block, pattern.random_block);
  AttentionPattern rest = pattern;
  rest.random = 0;
  std::set<std::int64_t> drawn;
  for (std::int64_t i = block * pattern.random_block; i < (block + 1) * pattern.random_block; ++i) {
    for (std::int64_t j = 0; j < n; ++j) {
      if (Shows(rest, i, j)) {
        EXPECT_TRUE(At(mask, i, j));
      } else if (At(mask, i, j)) {
        drawn.insert(j / pattern.random_block);
      }
    }
  }
  for (const std::int64_t b : drawn) {  // whole ones, where nothing else is
    for (std::int64_t i = block * pattern.random_block; i < (block + 1) * pattern.random_block;
         ++i) {
      for (std::int64_t j = b * pattern.random_block; j < (b + 1) * pattern.random_block; ++j) {
        EXPECT_FALSE(Shows(rest, i, j));
        EXPECT_EQ(At(mask, i, j), !pattern.causal || j <= i);
      }
    }
  }
  return drawn;
}

TEST(Patterns, RandomBlocksAreAsManyAsSaidWhereNothingElseIsShown) {
  constexpr std::int64_t kBlock = 4, kBlocks = 16, kLength = kBlock * kBlocks;
  for (const bool causal : {false, true}) {
    const AttentionPattern pattern = BigBird(6, 2, causal, 3, kBlock, 5);
    for (const std::int64_t block : {0, 3, 9, 15}) {
      const auto drawn = DrawnBlocks(pattern, block, kLength);
      AttentionPattern rest = pattern;
      rest.random = 0;
      std::int64_t candidates = 0;
      for (std::int64_t b = 0; b < (causal ? block + 1 : kBlocks); ++b) {
        bool shown = false;
        for (std::int64_t i = 0; i < kBlock * kBlock; ++i) {
          shown = shown || Shows(rest, block * kBlock + i / kBlock, b * kBlock + i % kBlock);
        }
        candidates += shown ? 0 : 1;
      }
      EXPECT_EQ(static_cast<std::int64_t>(drawn.size()), std::min<std::int64_t>(3, candidates))
          << block;
    }
  }
  // Without other parts a causal query sees its own block or one before.
  const AttentionPattern alone{.causal = true, .random = 2, .random_block = kBlock, .seed = 1};
  const PatternMask mask = MaskOf(alone, kLength, kLength, kBlock, kBlock);
  for (std::int64_t i = 0; i < kLength; ++i) {
    std::int64_t seen = 0;
    for (std::int64_t j = 0; j < kLength; ++j) seen += At(mask, i, j) ? 1 : 0;
    EXPECT_GE(seen, 1) << i;
  }
}

TEST(Patterns, DrawsFollowTheSeedAndAreSpread) {
  constexpr std::int64_t kBlock = 2, kLength = 64;
  const auto pattern = [](std::uint64_t seed) {
    return AttentionPattern{.random = 1, .random_block = kBlock, .seed = seed};
  };
  EXPECT_EQ(MaskOf(pattern(3), kLength, kLength, 2, 2).blocks,
            MaskOf(pattern(3), kLength, kLength, 2, 2).blocks);
  EXPECT_NE(MaskOf(pattern(3), kLength, kLength, 2, 2).blocks,
            MaskOf(pattern(4), kLength, kLength, 2, 2).blocks);
  // 32 blocks, 400 seeds: 12.5 draws each, standard deviation 3.5.
  std::vector<int> counts(kLength / kBlock, 0);
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    const auto drawn = DrawnBlocks(pattern(seed), 7, kLength);
    ASSERT_EQ(drawn.size(), 1U);
    ++counts[static_cast<std::size_t>(*drawn.begin())];
  }
  EXPECT_GT(*std::min_element(counts.begin(), counts.end()), 0);
  EXPECT_LT(*std::max_element(counts.begin(), counts.end()), 30);
}

// The keys that a causal pattern shows to a query do not depend on later keys: a model may write
// token by token.
TEST(Patterns, CausalPatternsOfAPrefixAreTheirBeginning) {
  std::vector<AttentionPattern> patterns = Patterns(true);
  patterns.push_back(BigBird(5, 1, true, 2, 4, 9));
  patterns.push_back({.causal = true, .stride = 6, .random = 2, .random_block = 8});
  constexpr std::int64_t kLength = 50;
  for (const AttentionPattern& pattern : patterns) {
    const PatternMask whole = MaskOf(pattern, kLength, kLength, 4, 4);
    for (const std::int64_t n : {1, 7, 32, 49}) {
      const PatternMask one = MaskOf(pattern, 1, n, 4, 4);
      for (std::int64_t j = 0; j < n; ++j) EXPECT_EQ(At(one, 0, j), At(whole, n - 1, j)) << n;
    }
  }
}

// Attention with the masks is attention of what the definition shows.
TEST(Patterns, AttentionTakesTheirMasks) {
  constexpr std::int64_t kLength = 40, kDim = 8;
  std::vector<float> q(kLength * kDim), k(q.size()), v(q.size()), out(q.size());
  for (std::size_t i = 0; i < q.size(); ++i) {
    const auto x = static_cast<float>(i);
    q[i] = std::sin(x), k[i] = std::cos(1.7F * x), v[i] = std::sin(0.3F * x + 1.0F);
  }
  for (const AttentionPattern& pattern :
       {Longformer(8, 2, true), StridedPattern(6), FixedPattern(8, 2, true)}) {
    const PatternMask mask = MaskOf(pattern, kLength, kLength, 8, 8);
    ASSERT_TRUE(mask.cut);
    AttentionParams params;
    params.batch = params.heads = params.kv_heads = 1;
    params.q_len = params.k_len = kLength;
    params.head_dim = params.value_dim = kDim;
    const auto view = [](std::vector<float>& data) {
      return MutableArray4{data.data(), DType::kFloat32, {0, 0, kDim, 1}};
    };
    params.q = view(q), params.k = view(k), params.v = view(v);
    params.map = RowMap::kSoftmax;
    params.mask.causal = pattern.causal;
    Use(mask, params.mask);
    AttentionForward({}, params, {.out = view(out)});
    for (std::int64_t i = 0; i < kLength; ++i) {
      double sum = 0.0, value = 0.0;
      for (std::int64_t j = 0; j < kLength; ++j) {
        if (!Shows(pattern, i, j)) continue;
        double dot = 0.0;
        for (std::int64_t x = 0; x < kDim; ++x) dot += double{q[i * kDim + x]} * k[j * kDim + x];
        const double weight = std::exp(dot / std::sqrt(static_cast<double>(kDim)));
        sum += weight;
        value += weight * v[j * kDim];
      }
      EXPECT_NEAR(out[i * kDim], value / sum, 1e-5) << i;
    }
  }
}

TEST(Patterns, ArgumentsAreNamed) {
  const auto refused = [](const AttentionPattern& pattern, std::int64_t q_len, std::int64_t block) {
    try {
      MaskOf(pattern, q_len, 8, block, 4);
    } catch (const InvalidArgument& error) {
      return error.argument();
    }
    return std::string("no error");
  };
  EXPECT_EQ(refused({.window = 2}, 8, 4), "no error");
  EXPECT_EQ(refused({.window = -1}, 8, 4), "pattern.window");
  EXPECT_EQ(refused({.global_tokens = -1}, 8, 4), "pattern.global_tokens");
  EXPECT_EQ(refused({.stride = -1}, 8, 4), "pattern.stride");
  EXPECT_EQ(refused({.segment = 4, .summary = 5}, 8, 4), "pattern.summary");
  EXPECT_EQ(refused({.random = -2}, 8, 4), "pattern.random");
  EXPECT_EQ(refused({.random_block = 0}, 8, 4), "pattern.random_block");
  EXPECT_EQ(refused({.window = 2}, 9, 4), "q_len");
  EXPECT_EQ(refused({.window = 2}, -1, 4), "q_len");
  EXPECT_EQ(refused({.window = 2}, 8, 0), "block_q");
}

}  // namespace
}  // namespace tsallis
