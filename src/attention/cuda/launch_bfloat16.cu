#include "attention/cuda/launch.h"
#include "attention/cuda/pages_run.h"
#include "attention/cuda/run.h"

namespace tsallis::cuda {

constinit const Launches kBFloat16Launches = {
    RunForward<BFloat16>,      RunBackward<BFloat16>, RunWorkspaceBytes<BFloat16>,
    RunSavedBytes<BFloat16>,   RunOnPages<BFloat16>,  RunOnPagesWorkspaceBytes<BFloat16>,
    RunWeightCounts<BFloat16>, RunWeights<BFloat16>};

}  // namespace tsallis::cuda
