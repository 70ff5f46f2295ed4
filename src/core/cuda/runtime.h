// The host's calls to a device: memory and launches, in a stream. They go to CUDA's runtime for
// nvcc, else to the emulation.
#pragma once

#include <cstddef>
#include <string>

#include "core/cuda/device.h"
#include "tsallis/error.h"
#include "tsallis/types.h"

namespace tsallis::cuda {
inline namespace TSALLIS_SIDE {

struct Grid {
  int x = 1, y = 1, z = 1;

  bool empty() const { return x <= 0 || y <= 0 || z <= 0; }
};

// Dynamic shared memory of a launch.
struct SharedBytes {
  std::size_t bytes;
  // The most that any launch of the kernel may have. A launch sets the kernel's limit, which the
  // launches of all host threads share: so it must not depend on the call.
  std::size_t most;

  SharedBytes(std::size_t of_all) : bytes(of_all), most(of_all) {}
  SharedBytes(std::size_t of_this, std::size_t of_any) : bytes(of_this), most(of_any) {}
};

#if defined(__CUDACC__)
// Throws DeviceError unless a call of the runtime succeeded.
inline void Check(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // so that later calls do not report it again
  throw DeviceError(call,
                    std::string(cudaGetErrorName(status)) + ": " + cudaGetErrorString(status));
}

// A stream of a device, which is the calling thread's device as long as this lives.
class Stream {
 public:
  explicit Stream(const Context& context) : stream_(static_cast<cudaStream_t>(context.stream)) {
    Check(cudaGetDevice(&before_), "cudaGetDevice");
    Check(cudaSetDevice(context.device_index), "cudaSetDevice");
  }
  ~Stream() { cudaSetDevice(before_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  SharedMemory Shared() const {
    int device = 0, multiprocessor = 0, block = 0;
    Check(cudaGetDevice(&device), "cudaGetDevice");
    Check(cudaDeviceGetAttribute(&multiprocessor, cudaDevAttrMaxSharedMemoryPerMultiprocessor,
                                 device),
          "cudaDeviceGetAttribute");
    Check(cudaDeviceGetAttribute(&block, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
          "cudaDeviceGetAttribute");
    return {static_cast<std::size_t>(multiprocessor), static_cast<std::size_t>(block)};
  }
  // Memory in the order of the stream: it may be freed before the work that uses it is done.
  void* Allocate(std::size_t bytes) const {
    void* data = nullptr;
    Check(cudaMallocAsync(&data, bytes, stream_), "cudaMallocAsync");
    return data;
  }
  void Free(void* data) const noexcept { cudaFreeAsync(data, stream_); }

  template <class... Parameters, class... Arguments>
  void Launch(const char* name, void (*kernel)(Parameters...), Grid grid, int threads,
              const SharedBytes& shared, const Arguments&... arguments) const {
    if (grid.empty()) return;
    if (shared.most > 48 * 1024) {
      Check(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                 cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 static_cast<int>(shared.most)),
            name);
    }
    const dim3 blocks(static_cast<unsigned>(grid.x), static_cast<unsigned>(grid.y),
                      static_cast<unsigned>(grid.z));
    kernel<<<blocks, static_cast<unsigned>(threads), shared.bytes, stream_>>>(arguments...);
    Check(cudaGetLastError(), name);
  }

 private:
  cudaStream_t stream_;
  int before_ = 0;
};

#else
class Stream {
 public:
  explicit Stream(const Context&) {}
  SharedMemory Shared() const {
    constexpr std::size_t kKilobyte = 1024;
    return simt::machine.policy.much_shared ? SharedMemory{228 * kKilobyte, 227 * kKilobyte}
                                            : SharedMemory{100 * kKilobyte, 99 * kKilobyte};
  }
  void* Allocate(std::size_t bytes) const {
    try {
      return simt::AllocateDevice(bytes);
    } catch (const std::bad_alloc&) {
      throw DeviceError("cudaMallocAsync", "cudaErrorMemoryAllocation: out of memory");
    }
  }
  void Free(void* data) const noexcept { simt::FreeDevice(data); }
  template <class... Parameters, class... Arguments>
  void Launch(const char*, void (*kernel)(Parameters...), Grid grid, int threads,
              const SharedBytes& shared, const Arguments&... arguments) const {
    if (grid.empty()) return;
    simt::LimitShared(reinterpret_cast<std::uintptr_t>(kernel), shared.bytes, shared.most);
    simt::Launch(kernel,
                 {static_cast<unsigned>(grid.x), static_cast<unsigned>(grid.y),
                  static_cast<unsigned>(grid.z)},
                 static_cast<unsigned>(threads), shared.bytes, arguments...);
  }
};

#endif

// A call's memory on the device: the context's, or allocated at once and freed at the end.
class Workspace {
 public:
  // stream: null to add up bytes only.
  Workspace(const Stream* stream, const Context& context)
      : stream_(stream), given_(context.workspace), given_bytes_(context.workspace_bytes) {}
  ~Workspace() {
    if (data_ != nullptr && given_ == nullptr) stream_->Free(data_);
  }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  // First every piece is asked for, then Allocate() gives them addresses.
  template <typename T>
  void Want(T** piece, std::size_t count, bool wanted = true) {
    *piece = nullptr;
    if (!wanted || count == 0) return;
    pieces_[used_++] = {reinterpret_cast<void**>(piece), bytes_};
    bytes_ += (count * sizeof(T) + 255) / 256 * 256;
  }
  // Throws InvalidArgument if the context's is too small, DeviceError if the device has no more.
  void Allocate() {
    if (bytes_ == 0) return;
    if (given_ != nullptr && given_bytes_ < bytes_) {
      throw InvalidArgument("context.workspace_bytes",
                            "what the call's ...WorkspaceBytes() says, " + std::to_string(bytes_),
                            std::to_string(given_bytes_));
    }
    data_ = given_ != nullptr ? given_ : stream_->Allocate(bytes_);
    for (int i = 0; i < used_; ++i) {
      *pieces_[i].address = static_cast<std::byte*>(data_) + pieces_[i].offset;
    }
  }
  std::size_t bytes() const { return bytes_; }

 private:
  struct Piece {
    void** address = nullptr;
    std::size_t offset = 0;
  };
  const Stream* stream_;
  void* given_;
  std::size_t given_bytes_;
  Piece pieces_[32];
  int used_ = 0;
  std::size_t bytes_ = 0;
  void* data_ = nullptr;
};

}  // namespace TSALLIS_SIDE
}  // namespace tsallis::cuda
