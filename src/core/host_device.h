// Marks functions that the host and kernels for GPUs share; empty for compilers without CUDA.
#pragma once

#if defined(__CUDACC__)
#define TSALLIS_HOST_DEVICE __host__ __device__
#else
#define TSALLIS_HOST_DEVICE
#endif
