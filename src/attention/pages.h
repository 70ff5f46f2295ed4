// Attention on pages (tsallis/pages.h), as far as all devices share it.
#pragma once

#include <cstdint>

#include "tsallis/attention.h"
#include "tsallis/pages.h"

namespace tsallis {

inline std::int64_t IntegerAt(const ConstIntegers& integers, std::int64_t i) {
  if (integers.wide) return static_cast<const std::int64_t*>(integers.data)[i];
  return static_cast<const std::int32_t*>(integers.data)[i];
}

// The call with the pages' k and v in place of its own, no ranges, and k_len as what a table has
// room for. Throws InvalidArgument for what is wrong on every device; looks at no contents.
AttentionParams CheckedOnPages(AttentionParams params, const AttentionPages& pages);

// Sequence b of a CPU's call on pages (call.pages and call.ranges are there), by a kernel that is
// chosen by that sequence's own keys: its bits do not depend on who shares the call.
void RunForwardOfSequence(const Context& context, AttentionParams call, AttentionOutputs outputs,
                          std::int64_t b);

}  // namespace tsallis
