#include "simplex/check.h"

#include <cmath>
#include <string>

#include "tsallis/error.h"

namespace tsallis {
namespace {

std::string Shape(const ConstRows& rows) {
  return "[" + std::to_string(rows.rows) + ", " + std::to_string(rows.length) + "]";
}

}  // namespace

void CheckParams(const RowMapParams& params, std::int64_t rows, DeviceKind device) {
  const ReferenceMap& map = FindMap(params.map);
  if (!(std::isfinite(params.temperature) && params.temperature > 0.0)) {
    throw InvalidArgument("temperature", "a finite number > 0", std::to_string(params.temperature));
  }
  if (map.check == nullptr) return;
  if (params.alpha_per_row == nullptr) {
    map.check(params);
    return;
  }
  if (device == DeviceKind::kCuda) {
    RowSpec others = params;
    others.alpha = 1.5;  // every map takes it
    return map.check(others);
  }
  RowSpecs specs(params);
  for (std::int64_t row = 0; row < rows; ++row) {
    try {
      map.check(specs[row]);
    } catch (const InvalidArgument& error) {
      if (error.argument() != "alpha") throw;
      throw InvalidArgument("alpha_per_row[" + std::to_string(row) + "]",
                            "a value that alpha may have",
                            std::to_string(params.alpha_per_row[row]));
    }
  }
}

void CheckRows(const char* name, const ConstRows& rows) {
  if (rows.rows < 0 || rows.length < 0) {
    throw InvalidArgument(name, "a shape without negative sizes", Shape(rows));
  }
  if (static_cast<int>(rows.dtype) > static_cast<int>(DType::kFloat64)) {
    throw InvalidArgument(name, "a known dtype",
                          "value " + std::to_string(static_cast<int>(rows.dtype)));
  }
  if (rows.data == nullptr && rows.rows > 0 && rows.length > 0) {
    throw InvalidArgument(name, "data of shape " + Shape(rows), "null");
  }
}

void CheckMatches(const char* name, const ConstRows& rows, const char* other_name,
                  const ConstRows& other, bool same_dtype) {
  CheckRows(name, rows);
  if (rows.rows != other.rows || rows.length != other.length) {
    throw InvalidArgument(name, "the shape of " + std::string(other_name) + ", " + Shape(other),
                          Shape(rows));
  }
  if (same_dtype && rows.dtype != other.dtype) {
    throw InvalidArgument(name,
                          "the dtype of " + std::string(other_name) + ", " + Name(other.dtype),
                          Name(rows.dtype));
  }
}

}  // namespace tsallis
