#include "tsallis/patterns.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>

#include "tsallis/error.h"

namespace tsallis {
namespace {

constexpr std::int64_t kMost = std::int64_t{1} << 40;

void CheckSize(const char* argument, std::int64_t value, std::int64_t least, std::int64_t most) {
  if (value >= least && value <= most) return;
  throw InvalidArgument(argument,
                        "an integer from " + std::to_string(least) + " to " + std::to_string(most),
                        std::to_string(value));
}

void Check(const AttentionPattern& pattern) {
  CheckSize("pattern.window", pattern.window, 0, kMost);
  CheckSize("pattern.global_tokens", pattern.global_tokens, 0, kMost);
  CheckSize("pattern.stride", pattern.stride, 0, kMost);
  CheckSize("pattern.segment", pattern.segment, 0, kMost);
  CheckSize("pattern.summary", pattern.summary, 0, pattern.segment);
  CheckSize("pattern.random", pattern.random, 0, kMost);
  CheckSize("pattern.random_block", pattern.random_block, 1, kMost);
}

std::int64_t Blocks(std::int64_t length, std::int64_t block) {
  return (length + block - 1) / block;
}

// SplitMix64 (Steele, Lea and Flood 2014).
class Draws {
 public:
  Draws(std::uint64_t seed, std::int64_t block) : state_(seed) {
    state_ = Next() ^ static_cast<std::uint64_t>(block);
  }
  // Draws from 0 ... count - 1.
  std::size_t Below(std::size_t count) { return Next() % count; }

 private:
  std::uint64_t Next() {
    std::uint64_t z = (state_ += 0x9E3779B97F4A7C15U);
    z = (z ^ (z >> 30U)) * 0xBF58476D1CE4E5B9U;
    z = (z ^ (z >> 27U)) * 0x94D049BB133111EBU;
    return z ^ (z >> 31U);
  }
  std::uint64_t state_;
};

// Calls show(begin, end) for the keys that all parts but the random one show to the query at
// position i, of the keys before `limit`. Ranges may overlap, and may be empty.
template <class Show>
void ForEachRange(const AttentionPattern& pattern, std::int64_t i, std::int64_t limit,
                  const Show& show) {
  const auto clipped = [&](std::int64_t begin, std::int64_t end) {
    show(std::max<std::int64_t>(begin, 0), std::min(end, limit));
  };
  if (pattern.window > 0) {
    if (pattern.causal) {
      clipped(i - pattern.window + 1, i + 1);
    } else {
      clipped(i - pattern.window / 2, i + pattern.window / 2 + 1);
    }
  }
  clipped(0, i < pattern.global_tokens ? limit : pattern.global_tokens);
  if (pattern.stride > 0) {
    for (std::int64_t j = i % pattern.stride; j < limit; j += pattern.stride) clipped(j, j + 1);
  }
  if (pattern.segment > 0) {
    const std::int64_t own = i / pattern.segment * pattern.segment;
    clipped(own, own + pattern.segment);
    for (std::int64_t end = pattern.segment; end - pattern.summary < limit && pattern.summary > 0;
         end += pattern.segment) {
      clipped(end - pattern.summary, end);
    }
  }
}

// Keys before which all visible ones lie.
std::int64_t Limit(const AttentionPattern& pattern, std::int64_t i, std::int64_t k_len) {
  return pattern.causal ? std::min(i + 1, k_len) : k_len;
}

// The key blocks drawn for a block of queries, in the order of the draw.
std::vector<std::int64_t> DrawBlocks(const AttentionPattern& pattern, std::int64_t block,
                                     std::int64_t k_len) {
  const std::int64_t size = pattern.random_block;
  // All positions of the block count, also those beyond the last query: a prefix draws the same.
  const std::int64_t last = (block + 1) * size;
  const std::int64_t count = pattern.causal ? block + 1 : Blocks(k_len, size);
  std::vector<bool> shown(static_cast<std::size_t>(count), false);
  std::int64_t hidden = count;
  const bool alone = pattern.window == 0 && pattern.global_tokens == 0 && pattern.stride == 0 &&
                     pattern.segment == 0;
  // A block may be much longer than the sequence: no position is looked at for nothing.
  for (std::int64_t i = block * size; i < last && hidden > 0 && !alone; ++i) {
    const std::int64_t limit = pattern.causal ? i + 1 : k_len;
    ForEachRange(pattern, i, limit, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t b = begin / size; begin < end && b <= (end - 1) / size; ++b) {
        hidden -= shown[static_cast<std::size_t>(b)] ? 0 : 1;
        shown[static_cast<std::size_t>(b)] = true;
      }
    });
  }
  std::vector<std::int64_t> remaining;
  for (std::int64_t b = 0; b < count; ++b) {
    if (!shown[static_cast<std::size_t>(b)]) remaining.push_back(b);
  }
  Draws draws(pattern.seed, block);
  std::vector<std::int64_t> drawn;
  while (!remaining.empty() && static_cast<std::int64_t>(drawn.size()) < pattern.random) {
    const std::size_t at = draws.Below(remaining.size());
    drawn.push_back(remaining[at]);
    remaining[at] = remaining.back();
    remaining.pop_back();
  }
  return drawn;
}

// The mask's blocks from all its pairs, and whether they say all.
void Summarise(PatternMask& mask) {
  const std::int64_t rows = Blocks(mask.q_len, mask.block_q);
  const std::int64_t columns = Blocks(mask.k_len, mask.block_k);
  std::vector<std::int64_t> counts(static_cast<std::size_t>(rows * columns), 0);
  for (std::int64_t r = 0; r < mask.q_len; ++r) {
    const std::uint8_t* row = mask.elements.data() + r * mask.k_len;
    std::int64_t* to = counts.data() + r / mask.block_q * columns;
    for (std::int64_t j = 0; j < mask.k_len; ++j) to[j / mask.block_k] += row[j];
  }
  mask.blocks.assign(counts.size(), 0);
  for (std::int64_t b = 0; b < rows * columns; ++b) {
    const std::int64_t height = std::min(mask.block_q, mask.q_len - b / columns * mask.block_q);
    const std::int64_t width = std::min(mask.block_k, mask.k_len - b % columns * mask.block_k);
    const std::int64_t count = counts[static_cast<std::size_t>(b)];
    mask.blocks[static_cast<std::size_t>(b)] = count > 0 ? 1 : 0;
    mask.cut = mask.cut || (count > 0 && count < height * width);
    mask.visible += count;
  }
  if (!mask.cut) mask.elements = {};
}

}  // namespace

PatternMask MaskOf(const AttentionPattern& pattern, std::int64_t q_len, std::int64_t k_len,
                   std::int64_t block_q, std::int64_t block_k, Alignment alignment) {
  Check(pattern);
  CheckSize("q_len", q_len, 0, kMost);
  CheckSize("k_len", k_len, 0, kMost);
  CheckSize("block_q", block_q, 1, kMost);
  CheckSize("block_k", block_k, 1, kMost);
  if (k_len > 0 && q_len > kMost / k_len) {
    throw InvalidArgument("q_len",
                          "at most " + std::to_string(kMost / k_len) +
                              " beside k_len = " + std::to_string(k_len) + ", 2^40 pairs",
                          std::to_string(q_len));
  }
  if (alignment == Alignment::kEnd && q_len > k_len) {
    throw InvalidArgument(
        "q_len",
        "at most k_len = " + std::to_string(k_len) + " where the last query stands at the last key",
        std::to_string(q_len));
  }
  PatternMask mask;
  mask.q_len = q_len;
  mask.k_len = k_len;
  mask.block_q = block_q;
  mask.block_k = block_k;
  mask.elements.assign(static_cast<std::size_t>(q_len * k_len), 0);
  const std::int64_t shift = alignment == Alignment::kEnd ? k_len - q_len : 0;
  std::int64_t drawn_for = -1;
  std::vector<std::int64_t> drawn;
  for (std::int64_t r = 0; r < q_len; ++r) {
    const std::int64_t i = r + shift;
    std::uint8_t* row = mask.elements.data() + r * k_len;
    const std::int64_t limit = Limit(pattern, i, k_len);
    const auto show = [&](std::int64_t begin, std::int64_t end) {
      if (begin < end) std::fill(row + begin, row + end, std::uint8_t{1});
    };
    ForEachRange(pattern, i, limit, show);
    if (pattern.random == 0) continue;
    const std::int64_t block = i / pattern.random_block;
    if (block != drawn_for) drawn = DrawBlocks(pattern, block, k_len);
    drawn_for = block;
    for (const std::int64_t b : drawn) {
      show(b * pattern.random_block, std::min((b + 1) * pattern.random_block, limit));
    }
  }
  Summarise(mask);
  return mask;
}

void Use(const PatternMask& mask, AttentionMask& attention) {
  attention.blocks = mask.blocks.data();
  const std::int64_t columns = Blocks(mask.k_len, mask.block_k);
  const std::int64_t block_strides[4] = {0, 0, columns, 1};
  std::copy(block_strides, block_strides + 4, attention.block_strides);
  attention.block_q = mask.block_q;
  attention.block_k = mask.block_k;
  attention.visible = mask.cut ? mask.elements.data() : nullptr;
  const std::int64_t strides[4] = {0, 0, mask.k_len, 1};
  std::copy(strides, strides + 4, attention.visible_strides);
}

AttentionPattern Longformer(std::int64_t window, std::int64_t global_tokens, bool causal) {
  return {.causal = causal, .window = window, .global_tokens = global_tokens};
}

AttentionPattern BigBird(std::int64_t window, std::int64_t global_tokens, bool causal,
                         std::int64_t random, std::int64_t random_block, std::uint64_t seed) {
  AttentionPattern pattern = Longformer(window, global_tokens, causal);
  pattern.random = random;
  pattern.random_block = random_block;
  pattern.seed = seed;
  return pattern;
}

AttentionPattern StridedPattern(std::int64_t stride, bool causal) {
  // A window that is not causal reaches half of its size to either side.
  return {.causal = causal, .window = causal ? stride : 2 * stride - 1, .stride = stride};
}

AttentionPattern FixedPattern(std::int64_t segment, std::int64_t summary, bool causal) {
  return {.causal = causal, .segment = segment, .summary = summary};
}

}  // namespace tsallis
