// Masks of fixed patterns (patterns.h) as tensors. No argument is a tensor, so that there is one
// implementation for every device and mode: the masks are made on the CPU.
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <algorithm>
#include <string>
#include <tuple>

#include "torch/attention_settings.h"
#include "torch/row_view.h"
#include "tsallis/error.h"
#include "tsallis/patterns.h"

namespace tsallis {
namespace {

using at::Tensor;

Tensor Booleans(const std::vector<std::uint8_t>& values, std::int64_t rows, std::int64_t columns) {
  Tensor tensor = at::empty({rows, columns}, at::kBool);
  std::transform(values.begin(), values.end(), tensor.mutable_data_ptr<bool>(),
                 [](std::uint8_t value) { return value != 0; });
  return tensor;
}

std::tuple<Tensor, Tensor> Masks(std::int64_t q_len, std::int64_t k_len, std::int64_t block_q,
                                 std::int64_t block_k, std::string_view alignment, bool causal,
                                 std::int64_t window, std::int64_t global_tokens,
                                 std::int64_t stride, std::int64_t segment, std::int64_t summary,
                                 std::int64_t random, std::int64_t random_block,
                                 std::int64_t seed) {
  TORCH_CHECK_VALUE(seed >= 0, "seed: expected an integer >= 0, got ", seed);
  AttentionPattern pattern;
  pattern.causal = causal;
  pattern.window = window;
  pattern.global_tokens = global_tokens;
  pattern.stride = stride;
  pattern.segment = segment;
  pattern.summary = summary;
  pattern.random = random;
  pattern.random_block = random_block;
  pattern.seed = static_cast<std::uint64_t>(seed);
  Alignment where{};
  FromName(alignment, &where);
  const PatternMask mask = Translated([&] {
    try {
      return MaskOf(pattern, q_len, k_len, block_q, block_k, where);
    } catch (const InvalidArgument& error) {
      // Callers here know the numbers of a pattern by their own names, and blocks as a pair.
      std::string name = error.argument();
      const std::string what = std::string(error.what()).substr(name.size());
      if (name.starts_with("pattern.")) name = name.substr(8);
      if (name == "block_q" || name == "block_k") name = "block_size";
      ThrowValueError((name + what).c_str());
    }
  });
  const std::int64_t rows = (q_len + block_q - 1) / block_q;
  const std::int64_t columns = (k_len + block_k - 1) / block_k;
  return {Booleans(mask.blocks, rows, columns),
          mask.cut ? Booleans(mask.elements, q_len, k_len) : at::zeros({0, 0}, at::kBool)};
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(tsallis, m) {
  // elements: has none where the blocks say all.
  m.def(
      "pattern_masks(int q_len, int k_len, int block_q, int block_k, str alignment, bool causal, "
      "int window, int global_tokens, int stride, int segment, int summary, int random, "
      "int random_block, int seed) -> (Tensor blocks, Tensor elements)",
      Masks);
}

}  // namespace tsallis
