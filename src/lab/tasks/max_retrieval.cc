#include "lab/tasks/max_retrieval.h"

namespace tsallis::lab {
namespace {

constexpr std::uint64_t kEvalSeed =
    0x7473616c6c6973;  // one evaluation list for all: methods are compared pairwise

// Fills set number `row` of `batch` from the stream.
void DrawSet(RandomStream& random, std::int64_t row, std::int64_t n, std::int64_t classes,
             const SetBatch& batch) {
  float* item = batch.items.mutable_data_ptr<float>() + row * n * (1 + classes);
  float best = -1.0F;
  std::int64_t target = 0;
  for (std::int64_t j = 0; j < n; ++j, item += 1 + classes) {
    const float priority = random.Uniform();
    const std::int64_t label = random.Below(classes);
    item[0] = priority;
    item[1 + label] = 1.0F;
    if (priority > best) {
      best = priority;
      target = label;
    }
  }
  batch.query.mutable_data_ptr<float>()[row] = random.Uniform();
  batch.target.mutable_data_ptr<std::int64_t>()[row] = target;
}

SetBatch EmptyBatch(std::int64_t sets, std::int64_t n, std::int64_t features) {
  return {at::zeros({sets, n, features}), at::empty({sets, 1}), at::empty({sets}, at::kLong)};
}

}  // namespace

SetBatch MaxRetrieval::TrainBatch(std::uint64_t seed, std::int64_t step, std::int64_t sets) const {
  RandomStream random(seed, Purpose::kTrain, static_cast<std::uint64_t>(step));
  const std::int64_t n = config_.train_length_min +
                         random.Below(config_.train_length_max - config_.train_length_min + 1);
  SetBatch batch = EmptyBatch(sets, n, Features());
  for (std::int64_t row = 0; row < sets; ++row) DrawSet(random, row, n, config_.classes, batch);
  return batch;
}

SetBatch MaxRetrieval::EvalBatch(Split split, std::int64_t n, std::int64_t first,
                                 std::int64_t sets) const {
  SetBatch batch = EmptyBatch(sets, n, Features());
  for (std::int64_t row = 0; row < sets; ++row) {
    // A stream per set, so that any slice of the list can be drawn; n in the index keeps lengths
    // apart.
    RandomStream random(
        kEvalSeed, PurposeOf(split),
        (static_cast<std::uint64_t>(n) << 24) | static_cast<std::uint64_t>(first + row));
    DrawSet(random, row, n, config_.classes, batch);
  }
  return batch;
}

}  // namespace tsallis::lab
