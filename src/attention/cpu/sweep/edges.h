// Holds an edge for every weight of a block of queries that is not 0, row by row, and the place of
// each row's edges with a bucket of keys. The threads that add up the keys' gradients take a bucket
// each, and walk through the blocks in order: sums whose order no thread decides, without atomics,
// and without a transposed copy of the lists.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/memory.h"

namespace tsallis {

// Keys of a bucket: their sums, for 64 columns of keys and values, are 512 KB.
inline constexpr std::int64_t kBucketKeys = 1024;

// Edges [begin, end) of a row, all with the keys of a bucket.
struct EdgeRun {
  std::int32_t row = 0;  // of the block
  std::uint32_t bucket = 0;
  std::size_t begin = 0, end = 0;
};

class BlockEdges {
 public:
  static constexpr std::size_t kBytes = 3 * 4;  // of an edge

  std::int64_t array_batch = 0, h = 0, q_begin = 0;
  double d_alpha = 0.0, d_slope = 0.0, d_sink = 0.0;

  void Clear();
  // Room for n edges and a vector more: for the ds of some rows, in their order and with any room
  // between them. Valid until it is called again.
  float* Begin(std::size_t n);
  // Adds a row. ds: out of that room, where the places before it are free from then on. The fewer
  // buckets its keys go back and forth between, the better; lists of a sweep ascend.
  void Add(std::int64_t row, const std::uint32_t* keys, const float* p, const float* ds,
           std::size_t n);
  // Sorts the runs by bucket; rows keep their order.
  void Sort(std::int64_t keys);

  std::size_t size() const { return size_; }
  std::span<const EdgeRun> Bucket(std::int64_t bucket) const {
    const auto i = static_cast<std::size_t>(bucket);
    return {sorted_.data() + starts_[i], starts_[i + 1] - starts_[i]};
  }
  const std::uint32_t* keys() const { return keys_.get(); }  // from the sequence's first
  const float* p() const { return p_.get(); }
  const float* ds() const { return ds_.get(); }  // the gradient's factors of q

 private:
  // Memory stays from block to block.
  GrowingBuffer<std::uint32_t> keys_;
  GrowingBuffer<float> p_, ds_;
  std::size_t size_ = 0;
  std::vector<EdgeRun> runs_, sorted_;
  std::vector<std::size_t> starts_;
};

}  // namespace tsallis
