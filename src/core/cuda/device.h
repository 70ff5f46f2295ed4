// The language of kernels for GPUs: names for a thread's place, collectives of a warp and a block,
// shared and device memory, asynchronous copies and matrix products. nvcc compiles them to CUDA and
// PTX; every other compiler to an emulation on the host (testing/simt.h), which checks what kernels
// do. So a kernel is one source, and its tests need no GPU.
//
// Collectives of a warp are of all its lanes. Shared memory goes through Shared<T>, device memory
// through LoadDevice and StoreDevice, so that the emulation sees every access.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#if defined(__CUDACC__)
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#else
#include "core/cuda/testing/instructions.h"
#include "core/elements.h"
#endif

namespace tsallis::cuda {

inline constexpr int kWarp = 32;

// 16 bytes: what a lane copies or loads at once.
struct alignas(16) Words4 {
  std::uint32_t w[4];
};
struct alignas(8) Words2 {
  std::uint32_t w[2];
};

// Work of kernels that the emulation does not see by itself, counted there alone.
enum class Work : std::uint8_t {
  kListed,  // entries that are put into lists
  kRaised,  // times that a warp raises bounds of its rows
};

// Bytes of shared memory that a device has.
struct SharedMemory {
  std::size_t multiprocessor_bytes = 0;  // for all blocks that are on one at a time
  std::size_t block_bytes = 0;           // at most for one block
};

}  // namespace tsallis::cuda

#if defined(__CUDACC__)
// ---- on a GPU -----------------------------------------------------------------------------------
// PTX ISA 8.5: cp.async 9.7.9.25.3, ldmatrix 9.7.14.5.15, mma 9.7.14.5.14, max 9.7.3.13,
// ex2 9.7.3.21, cvt 9.7.9.21.

// Code that depends on these names lies in a namespace of its own: one program may have both sides,
// and their inline functions and kernels must not be taken for one another.
#define TSALLIS_SIDE gpu
#define TSALLIS_DEVICE __device__ __forceinline__
#define TSALLIS_RARE inline __device__ __noinline__
// Kernels are templates: several files may hold the same one.
// Takes the number of a block's threads, and of the blocks that a multiprocessor must have
// registers for.
#define TSALLIS_KERNEL(...) __global__ void __launch_bounds__(__VA_ARGS__)
#define TSALLIS_UNROLL _Pragma("unroll")
#define TSALLIS_LOOP _Pragma("unroll 1")

namespace tsallis::cuda {
inline namespace TSALLIS_SIDE {

TSALLIS_DEVICE int ThreadIndex() { return static_cast<int>(threadIdx.x); }
TSALLIS_DEVICE int BlockX() { return static_cast<int>(blockIdx.x); }
TSALLIS_DEVICE int BlockY() { return static_cast<int>(blockIdx.y); }
TSALLIS_DEVICE int BlockZ() { return static_cast<int>(blockIdx.z); }
TSALLIS_DEVICE int Blocks() { return static_cast<int>(gridDim.x); }

TSALLIS_DEVICE void SyncBlock() { __syncthreads(); }
// The same barrier; returns the number of threads whose vote is true.
TSALLIS_DEVICE int SyncBlockCount(bool vote) { return __syncthreads_count(vote ? 1 : 0); }
TSALLIS_DEVICE void SyncWarp() { __syncwarp(); }
template <typename T>
TSALLIS_DEVICE T Shuffle(T value, int from) {
  return __shfl_sync(0xFFFFFFFFu, value, from);
}
template <typename T>
TSALLIS_DEVICE T ShuffleXor(T value, int bits) {
  return __shfl_xor_sync(0xFFFFFFFFu, value, bits);
}
// From the lane `by` below in a piece of `width` lanes; the first ones keep theirs.
template <typename T>
TSALLIS_DEVICE T ShuffleUp(T value, int by, int width) {
  return __shfl_up_sync(0xFFFFFFFFu, value, by, width);
}
TSALLIS_DEVICE bool Any(bool vote) { return __any_sync(0xFFFFFFFFu, vote); }
TSALLIS_DEVICE std::uint32_t Ballot(bool vote) { return __ballot_sync(0xFFFFFFFFu, vote); }
TSALLIS_DEVICE std::uint32_t MatchAny(std::uint32_t value) {
  return __match_any_sync(0xFFFFFFFFu, value);
}
// The lanes' bits, or'ed.
TSALLIS_DEVICE std::uint32_t OrOfWarp(std::uint32_t bits) {
  return __reduce_or_sync(0xFFFFFFFFu, bits);
}

// Blocks for which a kernel that goes through its work in steps of the grid has memory: as many as
// an H200 has on its 132 multiprocessors at once, two on each. The emulation has few, so that they
// go round.
inline constexpr int kBlocksAtOnce = 264;

extern __shared__ Words4 shared_memory[];
template <typename T>
class Shared {
 public:
  TSALLIS_DEVICE explicit Shared(std::size_t byte)
      : data_(reinterpret_cast<T*>(reinterpret_cast<char*>(shared_memory) + byte)) {}
  TSALLIS_DEVICE T Load(int i) const { return data_[i]; }
  TSALLIS_DEVICE void Store(int i, const T& value) const { data_[i] = value; }
  TSALLIS_DEVICE Shared From(int i) const {
    Shared from = *this;
    from.data_ += i;
    return from;
  }
  TSALLIS_DEVICE std::uint32_t Address(int i) const {
    return static_cast<std::uint32_t>(__cvta_generic_to_shared(data_ + i));
  }

 private:
  T* data_;
};

// Loads memory that no thread of the launch writes.
template <typename T>
TSALLIS_DEVICE T LoadDevice(const T* data) {
  return *data;
}
TSALLIS_DEVICE Words4 LoadDevice(const Words4* data) {
  const uint4 v = __ldg(reinterpret_cast<const uint4*>(data));
  return {{v.x, v.y, v.z, v.w}};
}
template <typename T>
TSALLIS_DEVICE void StoreDevice(T* data, const T& value) {
  *data = value;
}

// Device memory that a block has for itself: its threads may exchange values there, with a barrier
// between, lanes of a warp with a SyncWarp.
template <typename T>
TSALLIS_DEVICE T LoadOfBlock(const T* data) {
  __builtin_assume(__isGlobal(data));
  return *data;
}
template <typename T>
TSALLIS_DEVICE void StoreOfBlock(T* data, const T& value) {
  __builtin_assume(__isGlobal(data));
  *data = value;
}

// 16 bytes to element `i` of shared memory; zeros unless `used`.
TSALLIS_DEVICE void CopyAsync(const Shared<Words4>& to, int i, const void* from, bool used) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(to.Address(i)), "l"(from),
               "r"(used ? 16 : 0)
               : "memory");
}
TSALLIS_DEVICE void CommitCopies() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }
// Until at most kOpen groups of this thread are under way.
template <int kOpen>
TSALLIS_DEVICE void WaitForCopies() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kOpen) : "memory");
}

// Lane 8 m + r names row r of matrix m: element `i` of `rows`.
TSALLIS_DEVICE void LoadMatrices(std::uint32_t (&words)[4], const Shared<Words4>& rows, int i) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(rows.Address(i))
               : "memory");
}
TSALLIS_DEVICE void LoadTransposed(std::uint32_t (&words)[4], const Shared<Words4>& rows, int i) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(rows.Address(i))
               : "memory");
}

struct BFloat16 {
  using Element = std::uint16_t;
  static constexpr bool kNarrowRange = false;  // of exponents
  static TSALLIS_DEVICE float ToFloat(std::uint16_t bits) {
    return __uint_as_float(static_cast<std::uint32_t>(bits) << 16);
  }
  static TSALLIS_DEVICE std::uint16_t FromFloat(float value) {
    const std::uint32_t bits = __float_as_uint(value);
    if (value != value) return static_cast<std::uint16_t>(bits >> 16 | 0x40);
    return static_cast<std::uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
  }
};
struct Float16 {
  using Element = std::uint16_t;
  static constexpr bool kNarrowRange = true;
  static TSALLIS_DEVICE float ToFloat(std::uint16_t bits) {
    return __half2float(__ushort_as_half(bits));
  }
  static TSALLIS_DEVICE std::uint16_t FromFloat(float value) {
    return __half_as_ushort(__float2half_rn(value));
  }
};

TSALLIS_DEVICE void Count(Work, int) {}

// Two 16-bit numbers, the first one in the lower half.
template <class Type>
TSALLIS_DEVICE std::uint32_t PairOf(float x, float y) {
  std::uint32_t pair;
  if constexpr (Type::kNarrowRange) {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;\n" : "=r"(pair) : "f"(y), "f"(x));
  } else {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;\n" : "=r"(pair) : "f"(y), "f"(x));
  }
  return pair;
}

// d += a b, [16, 16] times [16, 8]; instructions.h has the layouts of the registers.
template <class Type>
TSALLIS_DEVICE void MultiplyMatrices(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                     std::uint32_t b1) {
  if constexpr (Type::kNarrowRange) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

// NaN if one of them is.
TSALLIS_DEVICE float MaxOrNaN(float a, float b) {
  float larger;
  asm("max.NaN.f32 %0, %1, %2;\n" : "=f"(larger) : "f"(a), "f"(b));
  return larger;
}
// 2^x within 2^-22 of it, 0 for what is below 2^-126. exp2f has a comparison around each of them.
TSALLIS_DEVICE float Exp2(float x) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(power) : "f"(x));
  return power;
}
TSALLIS_DEVICE int CountBits(std::uint32_t bits) { return __popc(bits); }
TSALLIS_DEVICE int LowestBit(std::uint32_t bits) { return __ffs(static_cast<int>(bits)) - 1; }
TSALLIS_DEVICE std::uint32_t BitsOf(float value) { return __float_as_uint(value); }
TSALLIS_DEVICE float FloatOf(std::uint32_t bits) { return __uint_as_float(bits); }
// `bits` moved up by one, below them whether x < y: neither may be a NaN for it to be. Two
// instructions where a comparison takes three; a NaN that the device computes has no sign.
TSALLIS_DEVICE std::uint32_t PushLess(std::uint32_t bits, float x, float y) {
  return __funnelshift_l(__float_as_uint(x - y), bits, 1);
}

}  // namespace TSALLIS_SIDE
}  // namespace tsallis::cuda

#else
// ---- emulated -----------------------------------------------------------------------------------

#define TSALLIS_SIDE emulated
#define TSALLIS_DEVICE inline
#define TSALLIS_RARE inline
#define TSALLIS_KERNEL(...) void
#define TSALLIS_UNROLL
#define TSALLIS_LOOP

namespace tsallis::cuda {
inline namespace TSALLIS_SIDE {

inline int ThreadIndex() { return static_cast<int>(simt::machine.self->id); }
inline int BlockX() { return static_cast<int>(simt::machine.block_index.x); }
inline int BlockY() { return static_cast<int>(simt::machine.block_index.y); }
inline int BlockZ() { return static_cast<int>(simt::machine.block_index.z); }
inline int Blocks() { return static_cast<int>(simt::machine.grid.x); }

inline void SyncBlock(int line = __builtin_LINE()) { simt::SyncBlock(line); }
inline int SyncBlockCount(bool vote, int line = __builtin_LINE()) {
  return simt::SyncBlockCount(vote, line);
}
inline void SyncWarp(int line = __builtin_LINE()) { simt::SyncWarp(line); }
template <typename T>
T Shuffle(T value, int from, int line = __builtin_LINE()) {
  return simt::ShuffleFrom(value, static_cast<unsigned>(from), "__shfl_sync", line);
}
template <typename T>
T ShuffleXor(T value, int bits, int line = __builtin_LINE()) {
  const unsigned from = simt::machine.self->lane ^ static_cast<unsigned>(bits);
  return simt::ShuffleFrom(value, from, "__shfl_xor_sync", line);
}
template <typename T>
T ShuffleUp(T value, int by, int width, int line = __builtin_LINE()) {
  const auto lane = static_cast<int>(simt::machine.self->lane);
  const int from = lane % width >= by ? lane - by : lane;
  return simt::ShuffleFrom(value, static_cast<unsigned>(from), "__shfl_up_sync", line);
}
inline bool Any(bool vote, int line = __builtin_LINE()) {
  return simt::Ballot(vote, "__any_sync", line) != 0;
}
inline std::uint32_t Ballot(bool vote, int line = __builtin_LINE()) {
  return simt::Ballot(vote, "__ballot_sync", line);
}
inline std::uint32_t MatchAny(std::uint32_t value, int line = __builtin_LINE()) {
  return simt::MatchAny(value, line);
}
inline std::uint32_t OrOfWarp(std::uint32_t bits, int line = __builtin_LINE()) {
  return simt::OrOfWarp(bits, line);
}

inline constexpr int kBlocksAtOnce = 3;

template <typename T>
class Shared {
 public:
  explicit Shared(std::size_t byte) : byte_(byte) {}
  T Load(int i) const { return simt::LoadShared<T>(Address(i)); }
  void Store(int i, const T& value) const { simt::StoreShared(Address(i), value); }
  Shared From(int i) const { return Shared(Address(i)); }
  std::size_t Address(int i) const {
    return byte_ + static_cast<std::size_t>(static_cast<std::ptrdiff_t>(i)) * sizeof(T);
  }

 private:
  std::size_t byte_;
};

template <typename T>
T LoadDevice(const T* data) {
  simt::ReadDevice(data, sizeof(T), alignof(T));
  return *data;
}
template <typename T>
void StoreDevice(T* data, const T& value) {
  simt::WriteDevice(data, sizeof(T), alignof(T));
  *data = value;
}

template <typename T>
T LoadOfBlock(const T* data) {
  simt::ReadOfBlock(data, sizeof(T));
  return *data;
}
template <typename T>
void StoreOfBlock(T* data, const T& value) {
  simt::WriteOfBlock(data, sizeof(T));
  *data = value;
}

inline void CopyAsync(const Shared<Words4>& to, int i, const void* from, bool used) {
  simt::IssueCopy(to.Address(i), from, used);
}
inline void CommitCopies() { simt::CommitCopies(); }
template <int kOpen>
void WaitForCopies() {
  simt::WaitForCopies(kOpen);
}

inline void LoadMatrices(std::uint32_t (&words)[4], const Shared<Words4>& rows, int i,
                         int line = __builtin_LINE()) {
  simt::LoadMatrices(rows.Address(i), false, words, line);
}
inline void LoadTransposed(std::uint32_t (&words)[4], const Shared<Words4>& rows, int i,
                           int line = __builtin_LINE()) {
  simt::LoadMatrices(rows.Address(i), true, words, line);
}

struct BFloat16 {
  using Element = std::uint16_t;
  static constexpr bool kNarrowRange = false;
  static float ToFloat(std::uint16_t bits) { return FloatFromBFloat16(bits); }
  static std::uint16_t FromFloat(float value) { return BFloat16FromFloat(value); }
};
struct Float16 {
  using Element = std::uint16_t;
  static constexpr bool kNarrowRange = true;
  static float ToFloat(std::uint16_t bits) { return FloatFromFloat16(bits); }
  static std::uint16_t FromFloat(float value) { return Float16FromFloat(value); }
};

inline void Count(Work work, int times) {
  simt::machine.counters.work[static_cast<int>(work)] += static_cast<std::uint64_t>(times);
}

template <class Type>
std::uint32_t PairOf(float x, float y) {
  return static_cast<std::uint32_t>(Type::FromFloat(x)) |
         static_cast<std::uint32_t>(Type::FromFloat(y)) << 16;
}

template <class Type>
void MultiplyMatrices(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                      std::uint32_t b1, int line = __builtin_LINE()) {
  simt::MultiplyMatrices<Type>(d, a, b0, b1, line);
}

inline float MaxOrNaN(float a, float b) { return a != a || a > b ? a : b; }
inline float Exp2(float x) {
  const float power = std::exp2(x);
  return power < 0x1p-126f ? 0.0f : power;
}
inline int CountBits(std::uint32_t bits) { return std::popcount(bits); }
inline int LowestBit(std::uint32_t bits) { return std::countr_zero(bits); }
inline std::uint32_t BitsOf(float value) { return std::bit_cast<std::uint32_t>(value); }
inline float FloatOf(std::uint32_t bits) { return std::bit_cast<float>(bits); }
inline std::uint32_t PushLess(std::uint32_t bits, float x, float y) {
  return bits << 1 | (x < y ? 1u : 0u);
}

}  // namespace TSALLIS_SIDE
}  // namespace tsallis::cuda
#endif

namespace tsallis::cuda {
inline namespace TSALLIS_SIDE {

// The types of the elements of arrays. Products of 16-bit ones go through the tensor cores;
// float32's are made of single multiplications and additions, in the order of the columns, since no
// matrix instruction keeps its digits.
struct Float32 {
  using Element = float;
  static constexpr bool kNarrowRange = false;
  static TSALLIS_DEVICE float ToFloat(float value) { return value; }
  static TSALLIS_DEVICE float FromFloat(float value) { return value; }
};
template <class Type>
inline constexpr bool kIsFloat32 = sizeof(typename Type::Element) == 4;

TSALLIS_DEVICE int Lane() { return ThreadIndex() % kWarp; }
TSALLIS_DEVICE int WarpIndex() { return ThreadIndex() / kWarp; }

// Sums and maxima over a quad: the four lanes that share a row of a matrix product's sums.
TSALLIS_DEVICE float QuadSum(float x) {
  x += ShuffleXor(x, 1);
  return x + ShuffleXor(x, 2);
}
TSALLIS_DEVICE float QuadMax(float x) {
  x = MaxOrNaN(x, ShuffleXor(x, 1));
  return MaxOrNaN(x, ShuffleXor(x, 2));
}

}  // namespace TSALLIS_SIDE
}  // namespace tsallis::cuda
