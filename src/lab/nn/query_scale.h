// Length scalings (docs/definitions.md, L1-L4): what multiplies the query of a row, and its
// gradient. A new one is a class here with its file, a line in MakeQueryScale() and one in
// QueryScalings().
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lab/nn/decoder_config.h"
#include "lab/nn/decoder_kernels.h"
#include "lab/nn/parameters.h"

namespace tsallis::lab {

// The numbers that a scaling reads of the rows of a batch. All: [rows].
struct ScaleRows {
  std::int64_t rows = 0;
  const std::int32_t* position = nullptr;  // i
  const float* log_n = nullptr;            // ln(i + 2)
  const float* log_log_n = nullptr;        // ln ln(i + 2)
};

// Numbers of a head and row: element (row, head) is data[row * stride + head].
struct HeadMatrix {
  Cells data;
  std::int64_t stride = 0;
};
struct HeadFloats {
  float* data = nullptr;
  std::int64_t stride = 0;
};

// The scaling of `heads` neighbouring heads of one layer.
class QueryScale {
 public:
  QueryScale(const QueryScaling& config, std::int64_t heads)
      : config_(config),
        heads_(heads),
        fixed_delta_(static_cast<std::size_t>(heads), static_cast<float>(config.delta)) {}
  virtual ~QueryScale() = default;

  // Rows of the attention block's projection that this scaling reads, with their first values: they
  // multiply the block's normalised input together with the queries, keys and values.
  virtual std::vector<ParameterList::Part> Projection(const std::string& prefix,
                                                      std::int64_t width) const;
  // Columns that Projection() adds.
  virtual std::int64_t Columns() const { return 0; }
  // Parameters of its own; names begin with `prefix`.
  virtual void Declare(const std::string& prefix, ParameterList& list) = 0;

  // c(row, head). projected: [rows, Columns()].
  virtual void Forward(const ScaleRows& rows, HeadMatrix projected, HeadFloats c) const = 0;
  // Adds to the gradients of its parameters and writes that of the projection.
  virtual void Backward(const ScaleRows& rows, HeadMatrix projected, HeadFloats dc,
                        HeadMatrix d_projected) = 0;

  // The terms of c beside ln n, by their names in reports, and their values for one row and head.
  // values: [Terms().size()].
  virtual std::vector<std::string> Terms() const { return {}; }
  virtual void ReadTerms(HeadMatrix projected, std::int64_t row, std::int64_t head,
                         double* values) const;

 protected:
  // L5: the additive term as a parameter, if the configuration says so.
  void DeclareDelta(const std::string& prefix, ParameterList& list);
  const float* Delta() const;  // [heads]
  void DeltaBackward(const ScaleRows& rows, HeadFloats dc);
  // The names of a scaling's own terms, and delta where it is learned.
  std::vector<std::string> WithDelta(std::vector<std::string> terms) const;

  QueryScaling config_;
  std::int64_t heads_;

 private:
  std::vector<float> fixed_delta_;  // [heads]
  Parameter delta_;                 // [1, heads]
};

// None for kind "none".
std::unique_ptr<QueryScale> MakeQueryScale(const QueryScaling& config, std::int64_t heads);

}  // namespace tsallis::lab
