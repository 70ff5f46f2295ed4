#include "torch/row_view.h"

#include <ATen/EmptyTensor.h>
#include <ATen/Parallel.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>

#include <optional>
#include <string>
#include <vector>

namespace tsallis {
namespace {

// One stride that walks every dimension but `dim` in order, if there is one.
std::optional<std::int64_t> RowStride(at::IntArrayRef sizes, at::IntArrayRef strides,
                                      std::int64_t dim) {
  std::optional<std::int64_t> row_stride;
  std::int64_t expected = 0;
  for (auto d = static_cast<std::int64_t>(sizes.size()) - 1; d >= 0; --d) {
    if (d == dim || sizes[d] == 1) continue;
    if (!row_stride) {
      row_stride = strides[d];
    } else if (strides[d] != expected) {
      return std::nullopt;
    }
    expected = strides[d] * sizes[d];
  }
  return row_stride.value_or(sizes[dim]);
}

std::int64_t CountRows(at::IntArrayRef sizes, std::int64_t dim) {
  std::int64_t rows = 1;
  for (std::int64_t d = 0; d < static_cast<std::int64_t>(sizes.size()); ++d) {
    if (d != dim) rows *= sizes[d];
  }
  return rows;
}

}  // namespace

DType KernelDType(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kFloat: return DType::kFloat32;
    case at::kBFloat16: return DType::kBFloat16;
    case at::kHalf: return DType::kFloat16;
    default: return DType::kFloat64;  // CheckScores let nothing else through
  }
}

Context TorchContext() { return Context{at::get_num_threads()}; }

std::string NamesOf(const std::vector<RowMap>& maps) {
  std::string names;
  for (const RowMap map : maps) names += (names.empty() ? "" : ", ") + std::string(Name(map));
  return names;
}

RowMap RowMapFromName(std::string_view name, const std::vector<RowMap>& among) {
  for (const RowMap map : among) {
    if (name == Name(map)) return map;
  }
  TORCH_CHECK_VALUE(false, "map: expected one of ", NamesOf(among), ", got ", name);
}

void RefuseTangent(const at::Tensor& tensor, const char* argument) {
  // There is one level of forward-mode differentiation, torch.func.jvp's too.
  TORCH_CHECK_NOT_IMPLEMENTED(!tensor._fw_grad(0).defined(), argument,
                              ": forward-mode differentiation (jvp) is not implemented for "
                              "tsallis; use reverse mode");
}

void CheckScores(const at::Tensor& scores, const char* argument) {
  TORCH_CHECK_TYPE(scores.defined(), argument, ": expected a tensor, got None");
  RefuseTangent(scores, argument);
  const at::ScalarType dtype = scores.scalar_type();
  TORCH_CHECK_VALUE(
      dtype == at::kFloat || dtype == at::kDouble || dtype == at::kBFloat16 || dtype == at::kHalf,
      argument, ": expected dtype float32, float64, bfloat16 or float16, got ", dtype);
  TORCH_CHECK_VALUE(scores.layout() == at::kStrided, argument, ": expected a dense tensor, got ",
                    scores.layout());
}

std::int64_t WrapDim(const at::Tensor& scores, std::int64_t dim) {
  const std::int64_t rank = scores.dim();
  TORCH_CHECK_VALUE(rank > 0, "scores: expected at least one dimension, got a 0-d tensor");
  TORCH_CHECK_INDEX(dim >= -rank && dim < rank, "dim: expected an integer in [", -rank, ", ",
                    rank - 1, "], got ", dim);
  return dim < 0 ? dim + rank : dim;
}

bool IsPlainCpu(const at::Tensor& tensor) {
  const c10::impl::LocalDispatchKeySet local = c10::impl::tls_local_dispatch_key_set();
  const c10::DispatchKeySet keys = ((tensor.key_set() | local.included_) - local.excluded_) -
                                   c10::autograd_dispatch_keyset_with_ADInplaceOrView -
                                   c10::DispatchKeySet(c10::DispatchKey::BackendSelect);
  return keys.highestPriorityTypeId() == c10::DispatchKey::CPU;
}

InputRows ViewInput(const at::Tensor& tensor, std::int64_t dim) {
  std::optional<std::int64_t> row_stride = RowStride(tensor.sizes(), tensor.strides(), dim);
  InputRows view;
  view.rows = {nullptr, KernelDType(tensor), CountRows(tensor.sizes(), dim), tensor.size(dim), 0,
               1};
  if (row_stride) {
    view.tensor = tensor;
    view.rows.row_stride = *row_stride;
    view.rows.stride = tensor.stride(dim);
  } else {
    view.tensor = tensor.movedim(dim, -1).contiguous();
    view.rows.row_stride = view.rows.length;
  }
  view.rows.data = view.tensor.const_data_ptr();
  return view;
}

OutputRows::OutputRows(const at::Tensor& like, std::int64_t dim, at::ScalarType dtype) : dim_(dim) {
  tensor_ = at::Tensor(at::detail::empty_cpu(like.sizes(), dtype));
  rows_ = {nullptr, KernelDType(tensor_), CountRows(like.sizes(), dim), like.size(dim), 0, 1};
  if (const auto row_stride = RowStride(tensor_.sizes(), tensor_.strides(), dim)) {
    rows_.row_stride = *row_stride;
    rows_.stride = tensor_.stride(dim);
  } else {
    // Dimensions on both sides of the mapped one: no single row stride, so write rows aside.
    std::vector<std::int64_t> sizes = like.sizes().vec();
    sizes.erase(sizes.begin() + dim);
    sizes.push_back(like.size(dim));
    tensor_ = at::Tensor(at::detail::empty_cpu(sizes, dtype));
    rows_.row_stride = rows_.length;
    moved_ = true;
  }
  rows_.data = tensor_.mutable_data_ptr();
}

at::Tensor OutputRows::Finish() {
  return moved_ ? tensor_.movedim(-1, dim_).contiguous() : std::move(tensor_);
}

void ThrowValueError(const char* message) { TORCH_CHECK_VALUE(false, message); }

}  // namespace tsallis
