// Connects a tensor with the kernels: row views, checks, errors, threads.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tsallis/rows.h"
#include "tsallis/types.h"

namespace tsallis {

// Threads as torch has them set in this thread.
Context TorchContext();

// The names of maps, as errors list them.
std::string NamesOf(const std::vector<RowMap>& maps);

// The map of a name as Name(RowMap) gives it; throws c10::ValueError for one that is not in
// `among`.
RowMap RowMapFromName(std::string_view name, const std::vector<RowMap>& among = AllRowMaps());

// Throws c10::NotImplementedError if forward-mode differentiation carries a tangent on the tensor,
// which would be dropped in silence.
void RefuseTangent(const at::Tensor& tensor, const char* argument);

// Throws c10::ValueError unless the kernels can read the tensor's dtype and layout; refuses
// tangents.
void CheckScores(const at::Tensor& scores, const char* argument);

// The storage type of a tensor that passed CheckScores.
DType KernelDType(const at::Tensor& tensor);

// `dim` counted from the front; throws c10::IndexError out of range, c10::ValueError for rank 0.
std::int64_t WrapDim(const at::Tensor& scores, std::int64_t dim);

// True if nothing but autograd stands between this tensor and the CPU kernels: no autocast, no
// tracing, no transformation, no subclass.
bool IsPlainCpu(const at::Tensor& tensor);

// A tensor seen as [rows, length], `length` along `dim` and rows in the order of the other
// dimensions. Where strides allow it the view is the tensor itself; `tensor` keeps it alive, or the
// copy that was needed.
struct InputRows {
  at::Tensor tensor;
  ConstRows rows;
};
InputRows ViewInput(const at::Tensor& tensor, std::int64_t dim);

// A new contiguous tensor of `like`'s shape to be written as rows. Finish() returns it.
class OutputRows {
 public:
  OutputRows(const at::Tensor& like, std::int64_t dim, at::ScalarType dtype);
  const MutableRows& rows() const { return rows_; }
  at::Tensor Finish();

 private:
  at::Tensor tensor_;
  std::int64_t dim_;
  bool moved_ = false;  // tensor_ has the mapped dimension last
  MutableRows rows_;
};

// Runs `body`, turning InvalidArgument into c10::ValueError.
template <typename Body>
auto Translated(Body&& body);

[[noreturn]] void ThrowValueError(const char* message);

template <typename Body>
auto Translated(Body&& body) {
  try {
    return body();
  } catch (const std::invalid_argument& error) {
    ThrowValueError(error.what());
  }
}

}  // namespace tsallis
