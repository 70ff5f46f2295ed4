// Length scalings (docs/definitions.md, L1-L4): what multiplies the query of a row. A new one is a
// class here with its file, a line in MakeQueryScale() and one in QueryScalings().
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lab/nn/blocks.h"
#include "lab/nn/decoder_config.h"

namespace tsallis::lab {

// The rows of a batch as a scaling sees them. log_n, log_log_n: ln(i + 2) and its logarithm,
// float32 [rows and some more, to a multiple of kScaleRows]: torch's functions have other bits
// where a loop of vectors ends.
inline constexpr std::int64_t kScaleRows = 64;
struct ScaleRows {
  at::Tensor position;  // [rows] integers: i
  at::Tensor log_n, log_log_n;

  // positions: [rows] integers.
  static ScaleRows Of(const at::Tensor& positions);
};

// The scaling of `heads` neighbouring heads of one layer.
class QueryScale {
 public:
  QueryScale(const QueryScaling& config, std::int64_t heads, RowWorkers& workers)
      : config_(config), heads_(heads), workers_(workers) {}
  virtual ~QueryScale() = default;

  // Rows of the attention block's projection that this scaling reads, with their first values: they
  // multiply the block's normalised input together with the queries, keys and values.
  virtual std::vector<ParameterList::Part> Projection(const std::string& /*prefix*/,
                                                      std::int64_t /*width*/) const {
    return {};
  }
  // Parameters of its own; names begin with `prefix`.
  virtual void Declare(const std::string& prefix, ParameterList& parameters) = 0;

  // c, [rows, heads] float32. projected: [rows, columns], what the scaling reads begins at
  // `column`; becomes the one from which others read on.
  virtual at::Tensor operator()(const ScaleRows& rows, at::Tensor& projected,
                                std::int64_t column) const = 0;

  // The terms of c beside ln n, by their names in reports: [rows or 1, heads] float64.
  using NamedTerms = std::vector<std::pair<std::string, at::Tensor>>;
  virtual NamedTerms Terms(const at::Tensor& /*projected*/, std::int64_t /*column*/) const {
    return {};
  }

 protected:
  // L5: the additive term as a parameter, if the configuration says so.
  void DeclareDelta(const std::string& prefix, ParameterList& parameters);
  at::Tensor Delta(const at::Tensor& like) const;  // [heads]
  // A scaling's own terms, and delta where it is learned.
  NamedTerms WithDelta(NamedTerms terms) const;

  QueryScaling config_;
  std::int64_t heads_;
  RowWorkers& workers_;
  at::Tensor delta_;  // [heads]
};

// None for kind "none".
std::unique_ptr<QueryScale> MakeQueryScale(const QueryScaling& config, std::int64_t heads,
                                           RowWorkers& workers);

}  // namespace tsallis::lab
