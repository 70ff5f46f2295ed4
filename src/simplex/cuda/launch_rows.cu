#include "simplex/cuda/cuda.h"
#include "simplex/cuda/run.h"

namespace tsallis::cuda {

template <class Type>
inline constexpr RowLaunches kLaunchesOf = {RunRowsForward<Type>, RunRowsBackward<Type>,
                                            RunFenchelYoungLoss<Type>};

constinit const RowLaunches kRowLaunches[4] = {kLaunchesOf<Float32>, kLaunchesOf<BFloat16>,
                                               kLaunchesOf<Float16>, kLaunchesOf<Float64>};

}  // namespace tsallis::cuda
