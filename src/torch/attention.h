// The options of C++ callers as the operators of src/stable take them.
#pragma once

#include "stable/arguments.h"
#include "torch/operators.h"

namespace tsallis {

// Fills arguments in, which share the options' tensors.
void TakeOptions(const AttentionOptions& options, stable::AttentionArguments& arguments);

}  // namespace tsallis
