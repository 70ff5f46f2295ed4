#include "attention/cuda/testing/emulated_runs.h"

namespace tsallis::cuda {

TSALLIS_EMULATED_RUNS(, BFloat16)

}  // namespace tsallis::cuda
