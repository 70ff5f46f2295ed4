// Tensors become AttentionParams: for the kernels of CPUs and of CUDA devices.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "torch/attention.h"
#include "torch/attention_settings.h"
#include "torch/row_view.h"
#include "tsallis/attention.h"
#include "tsallis/error.h"

namespace tsallis {

// The operators' argument that a member of the kernel library's structs comes from, for errors.
std::string ArgumentOf(const std::string& member);

// Runs `body`; errors name arguments instead of members.
template <typename Body>
auto Renamed(Body&& body) {
  try {
    return body();
  } catch (const InvalidArgument& error) {
    const std::string what = error.what();
    ThrowValueError((ArgumentOf(error.argument()) + what.substr(error.argument().size())).c_str());
  }
}

// Below autograd an operator must not return its input, which aten::to does where nothing changes.
inline at::Tensor As(const at::Tensor& tensor, at::ScalarType dtype) {
  return tensor.scalar_type() == dtype ? tensor : tensor.to(dtype);
}

// A call as the kernel library takes it. Holds what the pointers point to, beside q, k, v and the
// options, which must outlive it.
class KernelArguments {
 public:
  using Sizes4 = std::array<std::int64_t, 4>;

  // v undefined: values of one element, all 0 (for the host alone).
  KernelArguments(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                  const AttentionOptions& options, Reader reader);
  KernelArguments(const KernelArguments&) = delete;
  KernelArguments& operator=(const KernelArguments&) = delete;

  const AttentionParams& params() const { return params_; }
  std::int64_t array_batch() const { return array_batch_; }
  // Packed rows that belong to no sequence, which the kernels do not write; on a device there may
  // be some in every packed batch.
  bool q_has_gaps() const { return q_gaps_; }
  bool k_has_gaps() const { return k_gaps_; }
  Sizes4 Scores() const { return {array_batch_, params_.heads, params_.q_len, params_.k_len}; }
  std::vector<std::int64_t> Rows() const { return {array_batch_, params_.heads, params_.q_len}; }

 private:
  // Begins and ends of the sequences along an axis, [batch] each: numbers of the host, or tensors
  // of a device.
  struct Axis {
    std::vector<std::int64_t> begin, end;
    at::Tensor device_begin, device_end;
  };

  void SetMasks(const AttentionOptions& options);
  void SetTerms(const AttentionOptions& options);
  void SetPadding(const OptionalTensor& lengths, const char* argument, std::int64_t length,
                  Padding padding, Axis& axis) const;
  bool SetPacked(const at::Tensor& offsets, const char* argument, std::int64_t length,
                 Axis& axis) const;

  Reader reader_;
  AttentionParams params_;
  std::int64_t array_batch_;
  bool q_gaps_ = false, k_gaps_ = false;
  at::Tensor alpha_, sink_;        // [heads], float64
  std::vector<at::Tensor> views_;  // expanded ones
  Axis q_axis_, k_axis_;
  double no_value_ = 0.0;
};

}  // namespace tsallis
