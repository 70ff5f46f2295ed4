#include "attention/cuda/testing/emulated_runs.h"

namespace tsallis::cuda {

TSALLIS_EMULATED_RUNS(, Float16)

}  // namespace tsallis::cuda
