#include "stable/tensor.h"

#include <torch/csrc/stable/ops.h>
#include <torch/headeronly/core/ScalarType.h>

#include <algorithm>
#include <cstring>
#include <sstream>
#include <stdexcept>
#include <utility>

namespace tsallis::stable {

void Check(AOTITorchError error, const char* call) {
  if (error != 0) throw std::runtime_error(std::string(call) + ": torch refused the call");
}

#define TSALLIS_CALL(function, ...) Check(function(__VA_ARGS__), #function)

namespace dtypes {
const std::int32_t kFloat32 = aoti_torch_dtype_float32();
const std::int32_t kFloat64 = aoti_torch_dtype_float64();
const std::int32_t kBFloat16 = aoti_torch_dtype_bfloat16();
const std::int32_t kFloat16 = aoti_torch_dtype_float16();
const std::int32_t kInt32 = aoti_torch_dtype_int32();
const std::int32_t kInt64 = aoti_torch_dtype_int64();
const std::int32_t kBool = aoti_torch_dtype_bool();
const std::int32_t kUInt8 = aoti_torch_dtype_uint8();
}  // namespace dtypes

namespace {

const std::int32_t kCpu = aoti_torch_device_type_cpu();
const std::int32_t kCuda = aoti_torch_device_type_cuda();
const std::int32_t kDense = aoti_torch_layout_strided();

// torch's own wrapper, for its operations.
torch::stable::Tensor Wrapped(const Tensor& tensor) {
  AtenTensorHandle handle = nullptr;
  TSALLIS_CALL(aoti_torch_new_tensor_handle, tensor.get(), &handle);
  return torch::stable::Tensor(handle);
}

Tensor Unwrapped(const torch::stable::Tensor& tensor) {
  AtenTensorHandle handle = nullptr;
  TSALLIS_CALL(aoti_torch_new_tensor_handle, tensor.get(), &handle);
  return Tensor(handle);
}

}  // namespace

Device Device::Cpu() { return {kCpu, -1}; }
bool Device::is_cpu() const { return type == kCpu; }
bool Device::is_cuda() const { return type == kCuda; }

std::string Device::Name() const {
  std::string name = "device " + std::to_string(type);
  if (is_cpu()) return "cpu";
  if (is_cuda()) name = "cuda";
  if (type == aoti_torch_device_type_meta()) name = "meta";
  if (type == aoti_torch_device_type_xpu()) name = "xpu";
  if (type == aoti_torch_device_type_mps()) name = "mps";
  return index < 0 || name == "meta" ? name : name + ':' + std::to_string(index);
}

Tensor::Tensor(AtenTensorHandle owned) : handle_(owned) {
  if (handle_ == nullptr) return;
  bool there = false;
  TSALLIS_CALL(aoti_torch_is_defined, handle_, &there);
  if (!there) {
    aoti_torch_delete_tensor_object(std::exchange(handle_, nullptr));
    return;
  }
  std::int64_t* sizes = nullptr;
  std::int32_t layout = 0;
  TSALLIS_CALL(aoti_torch_get_dim, handle_, &dim_);
  TSALLIS_CALL(aoti_torch_get_sizes, handle_, &sizes);
  sizes_ = sizes;
  TSALLIS_CALL(aoti_torch_get_dtype, handle_, &dtype_);
  TSALLIS_CALL(aoti_torch_get_device_type, handle_, &device_.type);
  TSALLIS_CALL(aoti_torch_get_device_index, handle_, &device_.index);
  TSALLIS_CALL(aoti_torch_get_layout, handle_, &layout);
  dense_ = layout == kDense;
  if (!dense_) return;
  std::int64_t* strides = nullptr;
  TSALLIS_CALL(aoti_torch_get_strides, handle_, &strides);
  strides_ = strides;
}

Tensor& Tensor::operator=(Tensor&& other) noexcept {
  std::swap(handle_, other.handle_);
  std::swap(dim_, other.dim_);
  std::swap(sizes_, other.sizes_);
  std::swap(strides_, other.strides_);
  std::swap(dtype_, other.dtype_);
  std::swap(device_, other.device_);
  std::swap(dense_, other.dense_);
  return *this;
}

Tensor::~Tensor() {
  if (handle_ != nullptr) aoti_torch_delete_tensor_object(handle_);
}

AtenTensorHandle Tensor::Release() { return std::exchange(handle_, nullptr); }

Tensor Tensor::Share() const {
  if (handle_ == nullptr) return {};
  AtenTensorHandle handle = nullptr;
  TSALLIS_CALL(aoti_torch_new_tensor_handle, handle_, &handle);
  return Tensor(handle);
}

std::int64_t Tensor::numel() const {
  std::int64_t count = 1;
  for (const std::int64_t size : sizes()) count *= size;
  return count;
}

bool Tensor::IsContiguous() const {
  bool contiguous = false;
  TSALLIS_CALL(aoti_torch_is_contiguous, handle_, &contiguous);
  return contiguous;
}

const void* Tensor::data() const {
  const void* data = nullptr;
  TSALLIS_CALL(torch_get_const_data_ptr, handle_, &data);
  return data;
}

void* Tensor::mutable_data() const {
  void* data = nullptr;
  TSALLIS_CALL(torch_get_mutable_data_ptr, handle_, &data);
  return data;
}

std::string DTypeName(std::int32_t dtype) {
  return torch::headeronly::toString(static_cast<torch::headeronly::ScalarType>(dtype));
}

std::string Text(Sizes sizes) {
  std::string text = "[";
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    text += (d > 0 ? ", " : "") + std::to_string(sizes[d]);
  }
  return text + "]";
}

std::string Text(double number) {
  std::ostringstream text;
  text << number;
  return text.str();
}

Tensor EmptyStrided(Sizes sizes, Sizes strides, std::int32_t dtype, const Device& device) {
  AtenTensorHandle handle = nullptr;
  const auto error =
      aoti_torch_empty_strided(static_cast<std::int64_t>(sizes.size()), sizes.data(),
                               strides.data(), dtype, device.type, device.index, &handle);
  // torch's allocator gave up: there is no other way for these arguments to be wrong.
  if (error != 0) throw std::runtime_error("torch could not allocate a tensor of " + Text(sizes));
  return Tensor(handle);
}

Tensor Empty(Sizes sizes, std::int32_t dtype, const Device& device) {
  std::array<std::int64_t, 8> few;
  std::vector<std::int64_t> many;
  std::int64_t* strides = few.data();
  if (sizes.size() > few.size()) {
    many.resize(sizes.size());
    strides = many.data();
  }
  std::int64_t next = 1;
  for (std::size_t d = sizes.size(); d-- > 0; next *= std::max<std::int64_t>(sizes[d], 1)) {
    strides[d] = next;
  }
  return EmptyStrided(sizes, {strides, sizes.size()}, dtype, device);
}

Tensor NoElements() {
  const std::int64_t none[1] = {0};
  return EmptyStrided(none, none, dtypes::kFloat32, Device::Cpu());
}

void Zero(const Tensor& tensor) { TSALLIS_CALL(aoti_torch_zero_, tensor.get()); }

void Fill(const Tensor& tensor, double value) { torch::stable::fill_(Wrapped(tensor), value); }

Tensor Contiguous(const Tensor& tensor) {
  return tensor.IsContiguous() ? tensor.Share()
                               : Unwrapped(torch::stable::contiguous(Wrapped(tensor)));
}

Tensor Cast(const Tensor& tensor, std::int32_t dtype) {
  if (tensor.dtype() == dtype) return tensor.Share();
  return Unwrapped(
      torch::stable::to(Wrapped(tensor), static_cast<torch::headeronly::ScalarType>(dtype)));
}

Tensor OnDevice(const Tensor& tensor, const Device& device) {
  if (tensor.device() == device) return tensor.Share();
  const auto type = torch::stable::detail::to<torch::headeronly::DeviceType>(
      torch::stable::detail::from(device.type));
  return Unwrapped(torch::stable::to(Wrapped(tensor), torch::stable::Device(type, device.index)));
}

Tensor Clone(const Tensor& tensor) {
  return Unwrapped(torch::stable::contiguous(torch::stable::clone(Wrapped(tensor))));
}

Tensor Difference(const Tensor& from, const Tensor& subtracted) {
  // The interface's factor is a float, which torch refuses for integers.
  const auto wide = [](const Tensor& tensor) { return Wrapped(Cast(tensor, dtypes::kFloat64)); };
  return Cast(Unwrapped(torch::stable::subtract(wide(from), wide(subtracted))), from.dtype());
}

Tensor Restrided(const Tensor& tensor, Sizes sizes, Sizes strides, std::int64_t offset) {
  AtenTensorHandle handle = nullptr;
  TSALLIS_CALL(aoti_torch__reinterpret_tensor, tensor.get(),
               static_cast<std::int64_t>(sizes.size()), sizes.data(), strides.data(), offset,
               &handle);
  return Tensor(handle);
}

DType KernelDType(const Tensor& tensor) {
  const std::int32_t dtype = tensor.dtype();
  if (dtype == dtypes::kFloat32) return DType::kFloat32;
  if (dtype == dtypes::kBFloat16) return DType::kBFloat16;
  if (dtype == dtypes::kFloat16) return DType::kFloat16;
  return DType::kFloat64;
}

std::array<std::int64_t, 4> Broadcast4(const Tensor& tensor, Sizes target) {
  std::array<std::int64_t, 4> strides{};
  const std::size_t missing = target.size() - static_cast<std::size_t>(tensor.dim());
  for (std::size_t d = missing; d < target.size(); ++d) {
    const auto own = static_cast<std::int64_t>(d - missing);
    if (tensor.size(own) != 1) strides[d] = tensor.stride(own);
  }
  return strides;
}

MutableArray4 Write(const Tensor& tensor) {
  return {tensor.mutable_data(),
          KernelDType(tensor),
          {tensor.stride(0), tensor.stride(1), tensor.stride(2), tensor.stride(3)}};
}

ConstArray4 View(const Tensor& tensor) {
  return {tensor.data(),
          KernelDType(tensor),
          {tensor.stride(0), tensor.stride(1), tensor.stride(2), tensor.stride(3)}};
}

}  // namespace tsallis::stable
