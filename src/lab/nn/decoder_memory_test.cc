// Memory of an evaluation: what it grows by with length is counted where torch allocates.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>

#include "lab/testing/decoder_variants.h"

namespace tsallis::lab {
namespace {

// Stands before torch's allocator for the time of its life, and counts.
class CountingAllocator : public c10::Allocator {
 public:
  CountingAllocator() : base_(c10::GetCPUAllocator()) { c10::SetCPUAllocator(this, kPriority); }
  ~CountingAllocator() override { c10::SetCPUAllocator(base_, kPriority); }
  CountingAllocator(const CountingAllocator&) = delete;
  CountingAllocator& operator=(const CountingAllocator&) = delete;

  c10::DataPtr allocate(std::size_t bytes) override {
    auto* piece = new Piece{this, bytes, base_->allocate(bytes)};
    const std::int64_t now = live_ += static_cast<std::int64_t>(bytes);
    std::int64_t peak = peak_;
    while (peak < now && !peak_.compare_exchange_weak(peak, now)) {
    }
    return {piece->memory.get(), piece, &Free, c10::Device(c10::DeviceType::CPU)};
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    base_->copy_data(to, from, bytes);
  }

  std::int64_t Live() const { return live_; }
  std::int64_t Peak() const { return peak_; }

 private:
  static constexpr std::uint8_t kPriority = 200;
  struct Piece {
    CountingAllocator* owner;
    std::size_t bytes;
    c10::DataPtr memory;
  };
  static void Free(void* context) {
    auto* piece = static_cast<Piece*>(context);
    piece->owner->live_ -= static_cast<std::int64_t>(piece->bytes);
    delete piece;
  }

  c10::Allocator* base_;
  std::atomic<std::int64_t> live_{0}, peak_{0};
};

DecoderConfig Model(std::int64_t layers) { return Asentmax(Sized(16, layers, 64, 4, 256)); }

// The most that evaluating one sequence of n tokens holds, the second half scored.
std::int64_t PeakOf(std::int64_t layers, std::int64_t n) {
  TokenBatch batch{at::arange(n, at::kLong).remainder(16).view({1, n}),
                   at::full({1, n}, kNotScored, at::kLong), at::Tensor()};
  batch.labels.slice(1, n / 2, n).fill_(3);
  CountingAllocator counting;
  std::int64_t peak = 0;
  {
    Decoder model(Model(layers), 1);
    const std::int64_t parameters = counting.Live();
    model.Evaluate(batch);
    peak = counting.Peak() - parameters;
  }
  EXPECT_EQ(counting.Live(), 0);
  return peak;
}

TEST(DecoderMemory, GrowsByOneLayersKeysAndValuesAndTheResidualStream) {
  const int threads = at::get_num_threads();
  at::set_num_threads(1);            // each has memory for a block of 1 024 rows
  const std::int64_t tokens = 2048;  // so that there is a whole block of scored rows, too
  const std::int64_t grown = PeakOf(2, 2 * tokens) - PeakOf(2, tokens);
  // The floats of a token: the residual stream; queries, keys, values, beta and gamma; attention's
  // output; c. Half of them are scored: their attention and residuals once more.
  const std::int64_t floats = 64 + (3 * 64 + 2 * 2) + 64 + 4 + (64 + 64) / 2;
  EXPECT_LE(grown, tokens * floats * 4);
  EXPECT_GE(grown, tokens * 64 * 4);  // the allocator is asked
  // However many layers there are; a hidden layer alone would be 256 floats a token.
  EXPECT_EQ(PeakOf(3, 2 * tokens) - PeakOf(3, tokens), grown);
  at::set_num_threads(threads);
}

}  // namespace
}  // namespace tsallis::lab
