#include "attention/cpu/sweep/edges.h"

#include <cstring>

namespace tsallis {

void BlockEdges::Clear() {
  size_ = 0;
  runs_.clear();
  d_alpha = d_slope = d_sink = 0.0;
}

float* BlockEdges::Begin(std::size_t n) {
  constexpr std::size_t kVector = 64;
  const auto room = static_cast<std::int64_t>(size_ + n + kVector);
  const auto kept = static_cast<std::int64_t>(size_);
  keys_.Extend(room, kept);
  p_.Extend(room, kept);
  return ds_.Extend(room, kept) + size_;
}

void BlockEdges::Add(std::int64_t row, const std::uint32_t* keys, const float* p, const float* ds,
                     std::size_t n) {
  std::memcpy(keys_.get() + size_, keys, n * sizeof(*keys));
  std::memcpy(p_.get() + size_, p, n * sizeof(*p));
  std::memmove(ds_.get() + size_, ds, n * sizeof(*ds));
  const auto bucket_of = [&](std::size_t i) {
    return keys[i] / static_cast<std::uint32_t>(kBucketKeys);
  };
  for (std::size_t i = 0; i < n;) {
    const std::uint32_t bucket = bucket_of(i);
    const std::size_t begin = i++;
    while (i < n && bucket_of(i) == bucket) ++i;
    runs_.push_back({static_cast<std::int32_t>(row), bucket, size_ + begin, size_ + i});
  }
  size_ += n;
}

void BlockEdges::Sort(std::int64_t keys) {
  const auto buckets = static_cast<std::size_t>((keys + kBucketKeys - 1) / kBucketKeys);
  starts_.assign(buckets + 1, 0);
  for (const EdgeRun& run : runs_) ++starts_[run.bucket + 1];
  for (std::size_t i = 0; i < buckets; ++i) starts_[i + 1] += starts_[i];
  sorted_.resize(runs_.size());
  for (const EdgeRun& run : runs_) sorted_[starts_[run.bucket]++] = run;
  // Each start has moved to its end, which is the next one's start.
  for (std::size_t i = buckets; i > 0; --i) starts_[i] = starts_[i - 1];
  starts_[0] = 0;
}

}  // namespace tsallis
