// Drawn problems for the kernels for GPUs.
#pragma once

#include <algorithm>
#include <cstdint>

#include "attention/testing/problem_spec.h"

namespace tsallis::cuda {

// A drawn problem, moved into what the kernels serve where little is missing.
inline ProblemSpec DrawServed(std::uint64_t seed, std::int64_t most) {
  ProblemSpec spec = DrawSpec(seed, most, /*broken=*/true);
  const std::int64_t sizes[] = {8, 16, 24, 32, 40, 64, 72, 128, 136, 256};
  spec.head_dim = sizes[seed % 10];
  spec.value_dim = seed % 3 != 0 ? spec.head_dim : sizes[seed / 3 % 10];
  if (spec.q_len * spec.k_len > 2000) {
    spec.batch = std::min<std::int64_t>(spec.batch, 1);
    spec.kv_heads = 1;
    spec.group = std::min<std::int64_t>(spec.group, 2);
    if (seed % 16 != 0) {
      spec.head_dim = std::min<std::int64_t>(spec.head_dim, 40);
      spec.value_dim = std::min<std::int64_t>(spec.value_dim, 40);
    }
  }
  if (spec.map != RowMap::kSoftmax) spec.map = RowMap::kEntmax;
  const double alphas[] = {1.0, 1.1, 1.25, 1.5, 1.5, 1.5, 1.75, 2.0};
  spec.alpha = alphas[seed / 2 % 8];
  spec.alpha_per_head = false;
  spec.visible = 1.0;
  spec.block = 0;
  spec.bias = false;
  spec.padding = 8;
  if (spec.odd == ProblemSpec::Odd::kTransposed) spec.odd = ProblemSpec::Odd::kNone;
  return spec;
}

}  // namespace tsallis::cuda
