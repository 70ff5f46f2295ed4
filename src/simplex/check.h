// Argument checks of the row maps; everything here throws InvalidArgument.
#pragma once

#include <cstdint>

#include "simplex/map.h"
#include "tsallis/rows.h"

namespace tsallis {

// The map of each row, unchecked.
class RowSpecs {
 public:
  explicit RowSpecs(const RowMapParams& params) : spec_(params), alphas_(params.alpha_per_row) {}

  // Valid until the next call.
  const RowSpec& operator[](std::int64_t row) {
    if (alphas_ != nullptr) spec_.alpha = alphas_[row];
    return spec_;
  }

 private:
  RowSpec spec_;
  const double* alphas_;  // [rows] or null
};

// Everything about `params` that `rows` rows need. kCuda: alphas of rows are the device's, so they
// are not looked at.
void CheckParams(const RowMapParams& params, std::int64_t rows, DeviceKind device);

// Sizes not negative, data there if anything is to be read.
void CheckRows(const char* name, const ConstRows& rows);

// Same shape and, if `same_dtype`, the same storage type.
void CheckMatches(const char* name, const ConstRows& rows, const char* other_name,
                  const ConstRows& other, bool same_dtype = true);

}  // namespace tsallis
