// A tensor as torch's stable C interface gives it: a handle, and what kernels ask of a tensor.
// Nothing here knows ATen, so that one binary runs in every torch from 2.10 on.
#pragma once

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/c/shim.h>

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <vector>

#include "tsallis/attention.h"
#include "tsallis/rows.h"
#include "tsallis/types.h"

namespace tsallis::stable {

using Sizes = std::span<const std::int64_t>;

// Throws std::runtime_error if a call of the interface failed.
void Check(AOTITorchError error, const char* call);

// Codes that the interface has for the dtypes that we use.
namespace dtypes {
extern const std::int32_t kFloat32, kFloat64, kBFloat16, kFloat16, kInt32, kInt64, kBool, kUInt8;
}  // namespace dtypes

struct Device {
  std::int32_t type = 0;
  std::int32_t index = -1;

  static Device Cpu();
  bool operator==(const Device&) const = default;
  bool is_cpu() const;
  bool is_cuda() const;
  // As torch writes it: "cpu", "cuda:0", "meta".
  std::string Name() const;
};

// Owns a handle; empty: no tensor. Sizes, strides and the rest are read once.
class Tensor {
 public:
  Tensor() = default;
  explicit Tensor(AtenTensorHandle owned);
  Tensor(Tensor&& other) noexcept { *this = std::move(other); }
  Tensor& operator=(Tensor&& other) noexcept;
  Tensor(const Tensor&) = delete;
  Tensor& operator=(const Tensor&) = delete;
  ~Tensor();

  bool defined() const { return handle_ != nullptr; }
  AtenTensorHandle get() const { return handle_; }
  AtenTensorHandle Release();
  // Another handle of the same tensor.
  Tensor Share() const;

  std::int64_t dim() const { return dim_; }
  std::int64_t size(std::int64_t d) const { return sizes_[d]; }
  Sizes sizes() const { return {sizes_, static_cast<std::size_t>(dim_)}; }
  // Of dense tensors alone.
  std::int64_t stride(std::int64_t d) const { return strides_[d]; }
  Sizes strides() const { return {strides_, static_cast<std::size_t>(dim_)}; }
  std::int64_t numel() const;
  std::int32_t dtype() const { return dtype_; }
  const Device& device() const { return device_; }
  bool dense() const { return dense_; }
  bool IsContiguous() const;

  const void* data() const;
  void* mutable_data() const;
  template <typename T>
  const T* data_as() const {
    return static_cast<const T*>(data());
  }
  template <typename T>
  T* mutable_as() const {
    return static_cast<T*>(mutable_data());
  }

 private:
  AtenTensorHandle handle_ = nullptr;
  std::int64_t dim_ = 0;
  const std::int64_t* sizes_ = nullptr;
  const std::int64_t* strides_ = nullptr;
  std::int32_t dtype_ = 0;
  Device device_;
  bool dense_ = false;
};

// ---- words of errors

// "Float", "Long" and so on, as torch's own errors have it.
std::string DTypeName(std::int32_t dtype);
// "[2, 4, 5]"
std::string Text(Sizes sizes);
std::string Text(double number);

// ---- new tensors

Tensor Empty(Sizes sizes, std::int32_t dtype, const Device& device);
Tensor EmptyStrided(Sizes sizes, Sizes strides, std::int32_t dtype, const Device& device);
// In the place of a result that was not asked for.
Tensor NoElements();
void Zero(const Tensor& tensor);
void Fill(const Tensor& tensor, double value);
// The tensor itself (another handle) where nothing has to be changed, else a copy.
Tensor Contiguous(const Tensor& tensor);
Tensor Cast(const Tensor& tensor, std::int32_t dtype);
Tensor OnDevice(const Tensor& tensor, const Device& device);
Tensor Clone(const Tensor& tensor);
// Of integers below 2^53.
Tensor Difference(const Tensor& from, const Tensor& subtracted);
// The same elements under other sizes and strides, from the element `offset` on.
Tensor Restrided(const Tensor& tensor, Sizes sizes, Sizes strides, std::int64_t offset = 0);

// ---- arrays as the kernel library takes them

// The storage type of a tensor that CheckScores let through.
DType KernelDType(const Tensor& tensor);
// Strides under which `tensor` repeats to `target`, to whose end its shape is aligned; it must
// broadcast.
std::array<std::int64_t, 4> Broadcast4(const Tensor& tensor, Sizes target);
// [batch, heads, rows, columns]
ConstArray4 View(const Tensor& tensor);
MutableArray4 Write(const Tensor& tensor);

}  // namespace tsallis::stable
