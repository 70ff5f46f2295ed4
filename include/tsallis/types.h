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

// How a call may use the machine. There are no globals: every entry point takes one.
struct Context {
  int threads = 0;  // 0: as many as OpenMP offers; results do not depend on it
};

}  // namespace tsallis
