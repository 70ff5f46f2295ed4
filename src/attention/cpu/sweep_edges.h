// What a block of queries has for its keys: an edge for every weight that is not 0, sorted by panels of
// keys. The threads that add up the keys' gradients take a panel each, and walk through the blocks in
// order: sums whose order no thread decides, without atomics, and without a transposed copy of the lists.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tsallis {

// Keys of a panel: their sums, for 64 columns of keys and values, are 512 KB.
inline constexpr std::int64_t kPanelKeys = 1024;

struct Edge {
  std::uint32_t key = 0;  // from the sequence's first
  std::int32_t row = 0;   // of the block
  float p = 0.0f;
  float ds = 0.0f;  // the gradient's factor of q for this key
};

struct BlockEdges {
  std::int64_t array_batch = 0, h = 0, q_begin = 0;
  double d_alpha = 0.0, d_slope = 0.0;

  void Clear();
  // Room for the gradients of a row's n entries, valid until the next call.
  float* Room(std::size_t n);
  void Append(std::int64_t row, const std::uint32_t* keys, const float* p, const float* ds,
              std::size_t n);
  // d_alpha += sum dp (dp / d alpha). p, dp: [n].
  void AddAlpha(double alpha, const float* p, const float* dp, std::size_t n);
  // Sorts by panel; rows keep their order.
  void Sort(std::int64_t keys);
  std::span<const Edge> Panel(std::int64_t panel) const {
    const auto i = static_cast<std::size_t>(panel);
    return {sorted_.data() + starts_[i], starts_[i + 1] - starts_[i]};
  }

 private:
  // Memory stays from block to block.
  std::vector<Edge> edges_, sorted_;
  std::vector<std::size_t> starts_;
  std::vector<float> room_;
  std::vector<double> wide_p_, wide_dp_;
};

}  // namespace tsallis
