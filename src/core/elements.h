// Reading and writing single elements of any storage type, for the row maps, the reference, strided
// rows and kernels for GPUs. Attention on CPUs converts whole vectors (attention/cpu/load-inl.h).
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "core/host_device.h"
#include "tsallis/types.h"

namespace tsallis {

inline TSALLIS_HOST_DEVICE float FloatFromBFloat16(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

// Rounds to nearest even; NaN stays NaN.
inline TSALLIS_HOST_DEVICE std::uint16_t BFloat16FromFloat(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  if (std::isnan(value)) return static_cast<std::uint16_t>((bits >> 16) | 0x40);
  return static_cast<std::uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

inline TSALLIS_HOST_DEVICE float FloatFromFloat16(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000) << 16;
  const std::uint32_t rest = bits & 0x7FFF;
  if (rest >= 0x7C00) return std::bit_cast<float>(sign | 0x7F800000 | ((rest & 0x3FF) << 13));
  // Subnormals too: a float with the exponent shifted, then scaled exactly.
  return std::bit_cast<float>(sign | (rest << 13)) * 0x1p112f;
}

// Rounds to nearest even; overflows to infinity.
inline TSALLIS_HOST_DEVICE std::uint16_t Float16FromFloat(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000;
  const std::uint32_t rest = bits & 0x7FFFFFFF;
  if (rest > 0x7F800000) return static_cast<std::uint16_t>(sign | 0x7E00);
  if (rest >= 0x477FF000) return static_cast<std::uint16_t>(sign | 0x7C00);
  if (rest < 0x38800000) {  // subnormal: let float addition round at the right place
    const float shifted = std::bit_cast<float>(rest) + 0.5f;
    return static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3F000000));
  }
  return static_cast<std::uint16_t>(sign |
                                    ((rest - 0x38000000 + 0xFFF + ((rest >> 13) & 1)) >> 13));
}

// Calls `body` with the storage type as a constant: an std::integral_constant<DType, ...>, whose
// value may be a template's argument. Not for float64, which the reference alone computes.
template <typename Body>
[[gnu::always_inline]] inline decltype(auto) ForDType(DType dtype, const Body& body) {
  switch (dtype) {
    case DType::kFloat32: return body(std::integral_constant<DType, DType::kFloat32>());
    case DType::kBFloat16: return body(std::integral_constant<DType, DType::kBFloat16>());
    default: return body(std::integral_constant<DType, DType::kFloat16>());
  }
}

// data: base of a matrix, index: element offset.
template <typename T>
TSALLIS_HOST_DEVICE T LoadElement(const void* data, DType dtype, std::int64_t index) {
  switch (dtype) {
    case DType::kFloat32: return static_cast<T>(static_cast<const float*>(data)[index]);
    case DType::kFloat64: return static_cast<T>(static_cast<const double*>(data)[index]);
    case DType::kBFloat16:
      return static_cast<T>(FloatFromBFloat16(static_cast<const std::uint16_t*>(data)[index]));
    case DType::kFloat16:
      return static_cast<T>(FloatFromFloat16(static_cast<const std::uint16_t*>(data)[index]));
  }
  return T(0);
}

template <typename T>
TSALLIS_HOST_DEVICE void StoreElement(void* data, DType dtype, std::int64_t index, T value) {
  switch (dtype) {
    case DType::kFloat32: static_cast<float*>(data)[index] = static_cast<float>(value); break;
    case DType::kFloat64: static_cast<double*>(data)[index] = static_cast<double>(value); break;
    case DType::kBFloat16:
      static_cast<std::uint16_t*>(data)[index] = BFloat16FromFloat(static_cast<float>(value));
      break;
    case DType::kFloat16:
      static_cast<std::uint16_t*>(data)[index] = Float16FromFloat(static_cast<float>(value));
      break;
  }
}

}  // namespace tsallis
