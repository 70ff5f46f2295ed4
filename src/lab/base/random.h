// Counter-based random numbers: a stream is a pure function of (seed, purpose, index), so data
// never depends on what ran before, on threads, or on where a run resumed.
#pragma once

#include <ATen/core/PhiloxRNGEngine.h>

#include <cstdint>

namespace tsallis::lab {

enum class Purpose : std::uint64_t {
  kTrain = 1,
  kEval = 2,
  kInit = 3,
  kHeatMap = 4,
  kValidation = 5,
  kLength = 6,
  kWords = 7,
  kStudy = 8,
  kSample = 9
};

// Parts of a task's data. They are drawn from streams of their own.
enum class Split : std::uint8_t { kTrain, kValidation, kTest };

inline Purpose PurposeOf(Split split) {
  switch (split) {
    case Split::kTrain: return Purpose::kTrain;
    case Split::kValidation: return Purpose::kValidation;
    case Split::kTest: return Purpose::kEval;
  }
  return Purpose::kTrain;
}

class RandomStream {
 public:
  RandomStream(std::uint64_t seed, Purpose purpose, std::uint64_t index)
      : engine_(seed, (static_cast<std::uint64_t>(purpose) << 56) | index, 0) {}

  std::uint32_t Next() { return engine_(); }

  // Uniform in [0, 1), on a grid of 2^-24.
  float Uniform() { return static_cast<float>(Next() >> 8) * 0x1.0p-24F; }

  // Uniform in [0, bound), bound > 0; takes one number of the stream where bound < 2^32, else two.
  std::int64_t Below(std::int64_t bound) {
    const auto wide = static_cast<std::uint64_t>(bound);
    if (wide >> 32 == 0) {
      return static_cast<std::int64_t>((static_cast<std::uint64_t>(Next()) * wide) >> 32);
    }
    const std::uint64_t high = Next();
    const std::uint64_t number = high << 32 | Next();
    return static_cast<std::int64_t>((static_cast<unsigned __int128>(number) * wide) >> 64);
  }

 private:
  at::Philox4_32 engine_;
};

}  // namespace tsallis::lab
