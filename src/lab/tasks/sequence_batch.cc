#include "lab/tasks/sequence_batch.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace tsallis::lab {

TokenBatch DrawBatch(const SequenceTask& task, std::uint64_t seed, Split split, std::int64_t first,
                     std::int64_t count, std::int64_t length) {
  std::vector<Sample> samples;
  samples.reserve(count);
  for (std::int64_t i = 0; i < count; ++i) {
    samples.push_back(task.Draw(seed, split, first + i, length));
  }
  return BatchOf(task, samples);
}

TokenBatch BatchOf(const SequenceTask& task, const std::vector<Sample>& samples) {
  std::size_t longest = 0;
  for (const Sample& sample : samples) longest = std::max(longest, sample.tokens.size());
  const auto count = static_cast<std::int64_t>(samples.size());
  const auto n = static_cast<std::int64_t>(longest);
  TokenBatch batch{at::full({count, n}, task.Pad(), at::kLong),
                   at::full({count, n}, kNotScored, at::kLong), at::empty({count}, at::kLong)};
  auto* tokens = batch.tokens.mutable_data_ptr<std::int64_t>();
  auto* labels = batch.labels.mutable_data_ptr<std::int64_t>();
  auto* lengths = batch.lengths.mutable_data_ptr<std::int64_t>();
  for (const Sample& sample : samples) {
    std::copy(sample.tokens.begin(), sample.tokens.end(), tokens);
    std::copy(sample.labels.begin(), sample.labels.end(), labels);
    *lengths++ = static_cast<std::int64_t>(sample.tokens.size());
    tokens += n;
    labels += n;
  }
  return batch;
}

std::int64_t TrainingLength(std::uint64_t seed, std::int64_t step, std::int64_t min,
                            std::int64_t max) {
  RandomStream random(seed, Purpose::kLength, static_cast<std::uint64_t>(step));
  return min + random.Below(max - min + 1);
}

}  // namespace tsallis::lab
