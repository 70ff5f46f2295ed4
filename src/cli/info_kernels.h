// The part of `tsallis info` about attention's kernels.
#pragma once

#include <nlohmann/json.hpp>

namespace tsallis::cli {

// {"attention_kernels": [...], "attention_choices": [...]}: the list that dispatch reads, best
// first, and what it picks here for shapes that are often met.
nlohmann::ordered_json AttentionKernelsJson();

void PrintAttentionKernels();

// The names of those usable on this machine, a line each.
void PrintAttentionKernelNames();

}  // namespace tsallis::cli
