// Numbers and weights of attention's heads, as they are looked at (layer_view.h).
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace tsallis::lab {

// Mean and spread of what has been added; Welford 1962.
class Moments {
 public:
  void Add(double value) {
    ++count_;
    const double from_mean = value - mean_;
    mean_ += from_mean / static_cast<double>(count_);
    squares_ += from_mean * (value - mean_);
  }
  std::int64_t Count() const { return count_; }
  double Mean() const { return mean_; }
  double Deviation() const;  // of a sample; 0 for a single value

 private:
  std::int64_t count_ = 0;
  double mean_ = 0.0, squares_ = 0.0;
};

// Quantities of one head by name.
using HeadQuantities = std::vector<std::pair<std::string, Moments>>;

// Weights > 0 of some queries of a sequence, as CSR; keys count from the sequence's first.
struct SparseRows {
  std::vector<std::int64_t> offsets;  // [queries + 1]
  std::vector<std::int64_t> keys;     // [offsets.back()], ascending in a row
  std::vector<float> weights;         // [offsets.back()]
};

}  // namespace tsallis::lab
