// Types shared by the public interfaces: storage types, execution context.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tsallis {

enum class DType : std::uint8_t { kFloat32, kBFloat16, kFloat16, kFloat64 };

// Bytes of one element.
constexpr std::size_t SizeOf(DType dtype) {
  return dtype == DType::kFloat64 ? 8 : dtype == DType::kFloat32 ? 4 : 2;
}

// Lower-case name as users write it: "float32", "bfloat16", "float16", "float64".
const char* Name(DType dtype);

enum class DeviceKind : std::uint8_t { kCpu, kCuda };

// How a call may use the machine. No such setting is global: every entry point takes a Context.
//
// kCuda: attention (attention.h, pages.h), row maps and their losses (rows.h); everything else
// refuses it. Arrays are in the memory of the device, and a call returns when its work is in the
// stream, not when it is done.
struct Context {
  int threads = 0;  // 0: as many as OpenMP offers; results do not depend on it
  DeviceKind device = DeviceKind::kCpu;
  int device_index = 0;    // kCuda: which one
  void* stream = nullptr;  // kCuda: a cudaStream_t of that device; null: the default stream
  // kCuda: memory of that device, aligned to 256 bytes, of the size that ...WorkspaceBytes() says.
  // It must stay untouched until the work is done. Null: the call allocates its own there.
  void* workspace = nullptr;
  std::size_t workspace_bytes = 0;
};

}  // namespace tsallis
