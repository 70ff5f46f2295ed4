#include "lab/base/device.h"

#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/DeviceType.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <torch/version.h>

#include <charconv>

#include "lab/base/errors.h"

namespace tsallis::lab {
namespace {

constexpr const char* kExpected = "\"cpu\", \"cuda\" or \"cuda:N\"";
constexpr int kMostDevices = 127;  // c10's index is a signed byte

// The index after "cuda", or -1: not such a name.
int CudaIndex(const std::string& name) {
  if (name == "cuda") return 0;
  const std::string prefix = "cuda:";
  if (!name.starts_with(prefix)) return -1;
  int index = -1;
  const char* end = name.data() + name.size();
  const auto [last, error] = std::from_chars(name.data() + prefix.size(), end, index);
  return error == std::errc() && last == end && index >= 0 && index <= kMostDevices ? index : -1;
}

bool IsPretend(const std::string& name) {
  return c10::is_privateuse1_backend_registered() && name == c10::get_privateuse1_backend();
}

// We link torch's CPU half alone, which starts sooner (cmake/TsallisTorch.cmake). The other one
// registers its kernels and devices as it is loaded. Empty, or why not.
std::string LoadCuda() {
  static const std::string why = [] {
    if (dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL) != nullptr) return std::string();
    const char* error = dlerror();
    return std::string(error == nullptr ? "libtorch_cuda.so cannot be loaded" : error);
  }();
  return why;
}

}  // namespace

std::string CheckDeviceName(const std::string& name) {
  return name == "cpu" || CudaIndex(name) >= 0 || IsPretend(name) ? "" : kExpected;
}

c10::Device DeviceNamed(const std::string& name) {
  if (name == "cpu") return c10::Device(c10::DeviceType::CPU);
  if (IsPretend(name)) return c10::Device(c10::DeviceType::PrivateUse1, 0);
  const int index = CudaIndex(name);
  if (index < 0) {
    throw UsageError(fmt::format("device: expected {}, got \"{}\"", kExpected, name));
  }
  if (const std::string why = LoadCuda(); !why.empty() || !at::hasCUDA()) {
    throw UsageError(fmt::format(
        "device: \"{}\" needs a torch with CUDA, and this one, {}, has none ({}). Install torch's "
        "CUDA build (a version without \"+cpu\") into the Python environment, then build Tsallis "
        "again; `tsallis info` shows what was found",
        name, TORCH_VERSION, why.empty() ? "no CUDA device can be used" : why));
  }
  const int count = at::detail::getCUDAHooks().deviceCount();
  if (index >= count) {
    throw UsageError(
        fmt::format("device: expected one of {} CUDA devices, from \"cuda:0\" on, got "
                    "\"{}\"",
                    count, name));
  }
  return c10::Device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(index));
}

}  // namespace tsallis::lab
