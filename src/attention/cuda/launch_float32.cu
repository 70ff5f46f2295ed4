#include "attention/cuda/launch.h"
#include "attention/cuda/pages_run.h"
#include "attention/cuda/run.h"

namespace tsallis::cuda {

constinit const Launches kFloat32Launches = {
    RunForward<Float32>,      RunBackward<Float32>, RunWorkspaceBytes<Float32>,
    RunSavedBytes<Float32>,   RunOnPages<Float32>,  RunOnPagesWorkspaceBytes<Float32>,
    RunWeightCounts<Float32>, RunWeights<Float32>};

}  // namespace tsallis::cuda
