#include "attention/cuda/testing/emulated_runs.h"

namespace tsallis::cuda {

TSALLIS_EMULATED_RUNS(, Float32)

}  // namespace tsallis::cuda
