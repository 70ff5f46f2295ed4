// Reports what attention has on NVIDIA's GPUs: the kernels of this library, the devices of this
// machine. docs/guide/cuda.md says what was run on which hardware.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace tsallis {

struct CudaDevice {
  std::string name;          // "NVIDIA H200"
  int major = 0, minor = 0;  // compute capability
  std::size_t memory = 0;    // bytes
  std::string why_unusable;  // empty: the kernels run on it
};

struct CudaInfo {
  std::vector<std::string> architectures;  // "80", "90a", ...; empty: no kernels were compiled
  std::string compiler;                    // "nvcc 13.0"
  std::string why_not_compiled;            // of a library without kernels: why, and what to do
  std::vector<CudaDevice> devices;         // in CUDA's order; empty where no kernels were compiled
  std::string why_no_devices;              // what CUDA's runtime says
};

// "NVIDIA H200 (sm_90, 139 GiB)", and what is wrong with it.
std::string Describe(const CudaDevice& device);

// Asks CUDA's runtime. Never throws: what fails stands in the answer.
CudaInfo QueryCuda();

}  // namespace tsallis
