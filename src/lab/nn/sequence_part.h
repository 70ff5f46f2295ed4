// Sequences whose tokens are split over processes: each has one part of every sequence. What treats
// tokens alone works on that part. Attention needs all tokens, but of a head at a time, so before
// it the processes trade heads for tokens, and after it tokens for heads (DeepSpeed-Ulysses, Jacobs
// et al. 2023). Parts of keys cannot be attended to one by one and merged, as softmax allows: the
// threshold of entmax depends on the scores of all keys.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

namespace tsallis::lab {

// Which of `count` things are those of process `rank` of `size`: [first, first + second). Shares
// differ by one at most.
std::pair<std::int64_t, std::int64_t> ShareOf(std::int64_t count, int rank, int size);

struct SequencePart {
  std::int64_t length = 0;  // tokens of the whole sequences
  int rank = 0;
  int size = 1;
  // Collective. Sends process i the next counts[i] numbers of `sent` and returns the received[i]
  // numbers that come from process i, one process after the other. sent: [numbers], contiguous.
  std::function<at::Tensor(const at::Tensor& sent, const std::vector<std::int64_t>& counts,
                           const std::vector<std::int64_t>& received)>
      exchange;

  // This process's share of heads, or of the tokens of a sequence.
  std::pair<std::int64_t, std::int64_t> Own(std::int64_t count) const {
    return ShareOf(count, rank, size);
  }
};

// Collective, and so is its gradient, which trades back. x has all of dimension `cut` and the own
// share of dimension `joined`, whose size in all processes together is `total`; the result has the
// own share of `cut` and all of `joined`.
at::Tensor Traded(const SequencePart& part, const at::Tensor& x, std::int64_t cut,
                  std::int64_t joined, std::int64_t total);

}  // namespace tsallis::lab
