// Whether weights as CSR are right: by what their rows come to when they meet the values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "attention/geometry.h"
#include "attention/testing/compare.h"
#include "attention/testing/problem.h"
#include "core/elements.h"
#include "tsallis/attention.h"

namespace tsallis::cuda {

// Empty, or what is wrong. count(params, counts), put(params, row_offsets, entries, columns,
// values): on arrays of the host. Rows of NaN and of no sequence have no weight.
template <class Count, class Put>
std::string CheckWeights(const Problem& problem, const Count& count, const Put& put,
                         double mean_floor = Expectation::kMeanFloor) {
  const AttentionParams& params = problem.params();
  const std::int64_t rows = ArrayBatch(params) * params.heads * params.q_len, e = params.value_dim;
  std::vector<std::int64_t> counts(rows), offsets(rows + 1), columns;
  count(params, counts.data());
  for (std::int64_t i = 0; i < rows; ++i) offsets[i + 1] = offsets[i] + counts[i];
  const std::int64_t entries = offsets[rows];
  columns.resize(entries);
  std::vector<float> values(entries);
  put(params, offsets.data(), entries, columns.data(), values.data());
  const Expectation expectation(problem, mean_floor);
  const Results& exact = expectation.exact();
  Results results;
  results.out = exact.out;
  results.support_size = exact.support_size;
  const ConstArray4& v = problem.wide().v;
  for (std::int64_t i = 0; i < rows; ++i) {
    if (exact.out[i * e] == Problem::kMark || exact.support_size[i] < 0) {
      if (counts[i] != 0) return "a row without weights has some";
      continue;
    }
    results.support_size[i] = counts[i];
    const std::int64_t h = i / params.q_len % params.heads, b = i / params.q_len / params.heads;
    std::vector<double> sums(e, 0.0);
    for (std::int64_t at = offsets[i]; at < offsets[i + 1]; ++at) {
      if (at > offsets[i] && columns[at] <= columns[at - 1]) return "columns do not ascend";
      if (columns[at] < 0 || columns[at] >= params.k_len) return "a column beyond the keys";
      const std::int64_t start = Offset(v.strides, b, KvHead(params, h), columns[at]);
      for (std::int64_t x = 0; x < e; ++x) {
        sums[x] += static_cast<double>(values[at]) *
                   LoadElement<double>(v.data, v.dtype, start + x * v.strides[3]);
      }
    }
    for (std::int64_t x = 0; x < e; ++x) {
      float rounded = 0.0f;
      StoreElement(&rounded, params.q.dtype, 0, sums[x]);
      results.out[i * e + x] = LoadElement<double>(&rounded, params.q.dtype, 0);
    }
  }
  return expectation.Check(results);
}

}  // namespace tsallis::cuda
