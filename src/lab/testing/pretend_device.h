// A device that is none: torch's PrivateUse1 as the memory of the host, for one test file of a
// program. Tensors of it do not mix with those of the CPU, as CUDA's do not: an operation that is
// given both throws. Operations themselves are the CPU's. It does not find a pointer into a tensor
// that the host follows.
//
// Include it in one file alone: it registers the backend, which models know by its name, "pretend"
// (lab/base/device.h).
#pragma once

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/alloc_cpu.h>
#include <torch/library.h>

namespace tsallis::lab::pretend {

inline constexpr c10::DeviceType kType = c10::DeviceType::PrivateUse1;

class Memory final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    void* data = bytes == 0 ? nullptr : c10::alloc_cpu(bytes);
    return {data, data, &Free, c10::Device(kType, 0)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &Free; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
  static Memory& Instance() {
    static Memory memory;
    return memory;
  }

 private:
  static void Free(void* data) {
    if (data != nullptr) c10::free_cpu(data);
  }
};

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    static const at::Generator generator = at::detail::createCPUGenerator();
    return generator;
  }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
};

// One device and one stream, which there is nothing to wait for.
struct Guard final : c10::impl::DeviceGuardImplInterface {
  static c10::Device One() { return {kType, 0}; }
  static c10::Stream Line() { return c10::Stream(c10::Stream::DEFAULT, One()); }

  c10::DeviceType type() const override { return kType; }
  c10::Device exchangeDevice(c10::Device) const override { return One(); }
  c10::Device getDevice() const override { return One(); }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device) const noexcept override { return Line(); }
  c10::Stream getDefaultStream(c10::Device) const override { return Line(); }
  c10::Stream exchangeStream(c10::Stream) const noexcept override { return Line(); }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  void record(void**, const c10::Stream&, const c10::DeviceIndex,
              const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void*, const c10::DeviceIndex) const noexcept override {}
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {}
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

// The tensor's memory as a tensor of the CPU.
inline at::Tensor OnHost(const at::Tensor& tensor) {
  if (tensor.is_cpu()) return tensor;
  return at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(),
                       at::TensorOptions().dtype(tensor.dtype()));
}

inline at::Tensor EmptyStrided(c10::IntArrayRef sizes, c10::IntArrayRef strides,
                               std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                               std::optional<at::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(sizes, strides, &Memory::Instance(),
                                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           dtype.value_or(at::kFloat));
}

inline at::Tensor Empty(c10::IntArrayRef sizes, std::optional<at::ScalarType> dtype,
                        std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>,
                        std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(sizes, &Memory::Instance(),
                                   c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   dtype.value_or(at::kFloat), format);
}

inline at::Tensor CopyFrom(const at::Tensor& from, const at::Tensor& to, bool) {
  OnHost(to).copy_(OnHost(from));
  return to;
}

inline at::Tensor CopyFromAndResize(const at::Tensor& from, const at::Tensor& to) {
  to.resize_(from.sizes());
  return CopyFrom(from, to, false);
}

inline const at::Tensor& Resize(const at::Tensor& self, c10::IntArrayRef sizes,
                                std::optional<at::MemoryFormat>) {
  at::TensorImpl* tensor = self.unsafeGetTensorImpl();
  const auto bytes = static_cast<std::size_t>(c10::multiply_integers(sizes)) * self.itemsize();
  if (bytes > self.storage().nbytes()) {
    c10::StorageImpl* storage = self.storage().unsafeGetStorageImpl();
    storage->set_data_ptr_noswap(Memory::Instance().allocate(bytes));
    storage->set_nbytes(bytes);
  }
  tensor->set_sizes_contiguous(sizes);
  return self;
}

// Behaves as CUDA's operations: all tensors are of the device; numbers of the CPU may join them.
inline void Fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto check = [&](const at::Tensor& tensor) {
    TORCH_CHECK(
        !tensor.defined() || !tensor.is_cpu() || tensor.dim() == 0, op.schema().operator_name(),
        ": expected all tensors to be on the same device, got one of the CPU, ", tensor.sizes());
  };
  const auto count = op.schema().arguments().size();
  for (std::size_t i = stack->size() - count; i < stack->size(); ++i) {
    const c10::IValue& value = (*stack)[i];
    if (value.isTensor()) check(value.toTensor());
    if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorVector()) check(tensor);
    }
    if (value.isOptionalTensorList()) {
      for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
        if (tensor) check(*tensor);
      }
    }
  }
  at::native::cpu_fallback(op, stack);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&Fallback>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", Empty);
  m.impl("empty_strided", EmptyStrided);
  m.impl("_copy_from", CopyFrom);
  m.impl("_copy_from_and_resize", CopyFromAndResize);
  m.impl("resize_", Resize);
  m.impl("as_strided", [](const at::Tensor& self, c10::IntArrayRef sizes, c10::IntArrayRef strides,
                          std::optional<std::int64_t> offset) {
    return at::native::as_strided_tensorimpl(self, sizes, strides, offset);
  });
  m.impl("view", [](const at::Tensor& self, c10::IntArrayRef sizes) {
    return at::native::view(self, sizes);
  });
  m.impl("unfold", [](const at::Tensor& self, std::int64_t dim, std::int64_t size,
                      std::int64_t step) { return at::native::unfold(self, dim, size, step); });
  m.impl("_reshape_alias",
         [](const at::Tensor& self, c10::IntArrayRef sizes, c10::IntArrayRef strides) {
           return at::native::_reshape_alias(self, sizes, strides);
         });
  // No fused attention: torch's own, of plain operations.
  m.impl(
      "_fused_sdp_choice",
      [](const at::Tensor&, const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&,
         double, bool, std::optional<double>, bool) -> std::int64_t { return 0; });
}

// Before main: torch looks at it when it starts its threads of backward passes.
inline const bool kRegistered = [] {
  c10::register_privateuse1_backend("pretend");
  static Hooks hooks;
  at::RegisterPrivateUse1HooksInterface(&hooks);
  c10::SetAllocator(kType, &Memory::Instance());
  return true;
}();

}  // namespace tsallis::lab::pretend
