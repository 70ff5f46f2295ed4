#include "tsallis/cuda.h"

#include <algorithm>
#include <string>
#include <utility>

#if defined(TSALLIS_HAS_CUDA)
#include <cuda_runtime_api.h>

#include "core/cuda/support.h"
#endif

namespace tsallis {

std::string Describe(const CudaDevice& device) {
  std::string text = device.name;
  if (device.major > 0) {
    text += " (sm_" + std::to_string(10 * device.major + device.minor) + ", " +
            std::to_string(device.memory >> 30) + " GiB)";
  }
  return device.why_unusable.empty() ? text : text + ": not usable, " + device.why_unusable;
}

#if defined(TSALLIS_HAS_CUDA)
namespace {

// "80,90a,100" in parts.
std::vector<std::string> Parts(const std::string& list) {
  std::vector<std::string> parts;
  for (std::size_t from = 0; from <= list.size();) {
    const std::size_t end = std::min(list.find(',', from), list.size());
    if (end > from) parts.push_back(list.substr(from, end - from));
    from = end + 1;
  }
  return parts;
}

std::string Said(cudaError_t status) {
  return std::string(cudaGetErrorName(status)) + ": " + cudaGetErrorString(status);
}

}  // namespace

CudaInfo QueryCuda() {
  CudaInfo info;
  info.architectures = Parts(TSALLIS_CUDA_ARCHITECTURES);
  info.compiler = "nvcc " TSALLIS_NVCC_VERSION;
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess) {
    cudaGetLastError();  // so that later calls do not report it again
    info.why_no_devices = Said(status);
    return info;
  }
  if (count == 0) info.why_no_devices = "the driver knows none";
  for (int i = 0; i < count; ++i) {
    cudaDeviceProp found;
    CudaDevice device;
    const cudaError_t said = cudaGetDeviceProperties(&found, i);
    if (said != cudaSuccess) {
      cudaGetLastError();
      device.name = "device " + std::to_string(i);
      device.why_unusable = Said(said);
    } else {
      device.name = found.name;
      device.major = found.major;
      device.minor = found.minor;
      device.memory = found.totalGlobalMem;
      device.why_unusable = cuda::WhyUnusable(info.architectures, TSALLIS_CUDA_INTERMEDIATE,
                                              found.major, found.minor);
    }
    info.devices.push_back(std::move(device));
  }
  return info;
}

#else

CudaInfo QueryCuda() {
  CudaInfo info;
  info.why_not_compiled = TSALLIS_WHY_NO_CUDA
      "; to have them, install CUDA's nvcc 12.8 or newer and build with -DTSALLIS_CUDA=ON";
  return info;
}

#endif

}  // namespace tsallis
