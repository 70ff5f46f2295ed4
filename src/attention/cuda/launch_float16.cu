#include "attention/cuda/launch.h"
#include "attention/cuda/pages_run.h"
#include "attention/cuda/run.h"

namespace tsallis::cuda {

constinit const Launches kFloat16Launches = {
    RunForward<Float16>,      RunBackward<Float16>, RunWorkspaceBytes<Float16>,
    RunSavedBytes<Float16>,   RunOnPages<Float16>,  RunOnPagesWorkspaceBytes<Float16>,
    RunWeightCounts<Float16>, RunWeights<Float16>};

}  // namespace tsallis::cuda
