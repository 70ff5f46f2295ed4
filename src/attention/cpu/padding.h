// Sizes of padded memory, and the bound of what lies in it, for all kernels.
#pragma once

#include <cstddef>
#include <type_traits>

namespace tsallis {

template <class T>
constexpr T RoundUp(T n, std::type_identity_t<T> to) {
  return (n + to - 1) / to * to;
}

// Keys and columns in memory of our own are padded to this, on every instruction set.
inline constexpr std::size_t kPadding = 16;
template <class T>
constexpr T Padded(T n) {
  return RoundUp(n, static_cast<T>(kPadding));
}
// To the depth of a bfloat16 tile.
template <class T>
constexpr T PaddedDepth(T n) {
  return RoundUp(n, T{32});
}

// Raises a bound; NaN wins, and stays.
template <class T>
void RaiseBound(T* bound, T value) {
  if (!(value <= *bound) && *bound == *bound) *bound = value;
}

}  // namespace tsallis
