// Chains of operations that treat every row of a batch alone: what stands between two attentions of
// a model. A chain carries two things: the residual stream, float32, and a value in the model's
// dtype that its stages make of it.
//
//   Norm -> Linear -> Gated -> Linear -> Add     is   x += W2 act(W1 norm(x))
//
// A chain runs block by block, each block of rows through all stages on one thread while its
// activations are in the second-level cache. The bounds of blocks depend on shapes alone, and so
// does the order of every sum: results do not depend on the number of threads, to the bit. A new
// operation is one class below RowStage with its gradient (row_stages.cc).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lab/nn/decoder_kernels.h"
#include "lab/nn/parameters.h"
#include "tsallis/types.h"

namespace tsallis::lab {

// Rows that one thread works on at a time. Wide enough for the matrix products, small enough that a
// block's activations stay in the second-level cache.
inline constexpr std::int64_t kRowBlock = 1024;

// A buffer that grows when it has to; memory given back to the system and fetched again at every
// step costs more than many an operation (docs/log.md).
class Buffer {
 public:
  // [rows, columns], contents undefined; what was taken before is gone.
  at::Tensor Rows(std::int64_t rows, std::int64_t columns, at::ScalarType dtype);

 private:
  at::Tensor memory_;  // [numbers]
};

// Threads of one pass, and the memory that each needs for one block. Products inside a block run on
// its thread alone.
class RowWorkers {
 public:
  struct Scratch {
    std::vector<Buffer> values, gradients;  // of every stage
    Buffer product;
  };

  void SetThreads(int threads) { threads_ = threads; }
  int threads() const { return threads_; }

  // Calls body(begin, end, scratch) on blocks of `block` rows.
  void ForBlocks(std::int64_t rows, std::int64_t block,
                 const std::function<void(std::int64_t, std::int64_t, Scratch&)>& body);

  // Adds dy x to the gradient of each.
  struct WeightGradient {
    at::Tensor dy;  // [out, rows]
    at::Tensor x;   // [rows, in]
    const Parameter* weight;
  };
  void AddWeightGradients(const std::vector<WeightGradient>& gradients);

 private:
  // Calls body(task, scratch) for every task.
  void ForTasks(std::int64_t count, const std::function<void(std::int64_t, Scratch&)>& body);

  int threads_ = 1;
  std::vector<Scratch> scratch_;
};

// A block of rows as a stage sees it.
struct RowSpan {
  std::int64_t begin, count;
};

// One operation. Tensors are blocks, [count, columns]: x the residual stream, float32.
class RowStage {
 public:
  enum class Kind : std::uint8_t {
    kFromStream,  // value = f(x)
    kValue,       // value = f(value)
    kInPlace,     // the same, in its memory
    kToStream,    // x += f(value): the last stage of a chain
  };

  RowStage(Kind kind, std::int64_t columns) : kind_(kind), columns_(columns) {}
  virtual ~RowStage() = default;

  Kind kind() const { return kind_; }
  // Columns of the value that leaves it; kToStream: of the stream.
  std::int64_t columns() const { return columns_; }

  // The weight [columns, in] of a product, or null. The chain adds its gradient, from the values
  // and gradients of all rows.
  virtual const Parameter* Weight() const { return nullptr; }
  // A parameter whose gradient Backward adds to `d_gain`, or null. [columns]
  virtual const Parameter* Gain() const { return nullptr; }
  // Numbers of a row that Forward leaves for Backward.
  virtual std::int64_t Kept() const { return 0; }

  // Computes what `kind` says. kFromStream: value is null. kToStream: `out` is the stream
  // afterwards, may be x. kept: [count, Kept()].
  struct Forwards {
    RowSpan span;
    at::Tensor x, value, out;
    float* kept;
  };
  virtual void Forward(const Forwards& block) const = 0;

  // value: the input of Forward (kInPlace: its result); x: the stream that it read. d_out: the
  // gradient of `out`. d_value: receives the gradient of `value`; kInPlace: it holds the gradient
  // of `out` on entry. kFromStream adds to d_x, kToStream reads it as d_out. `out`, if defined:
  // receives the result of Forward again, because it was not kept.
  struct Backwards {
    RowSpan span;
    at::Tensor x, value, d_x, d_value, d_out, out;
    const float* kept;
    float* d_gain;  // [columns]; null without a gain
  };
  virtual void Backward(const Backwards& block) const = 0;

 private:
  Kind kind_;
  std::int64_t columns_;
};

// The stages of one call, with what its forward pass leaves for the gradient.
class RowChain {
 public:
  // dtype: of values.
  RowChain(std::vector<std::unique_ptr<RowStage>> stages, at::ScalarType dtype);

  // Columns of the value that leaves the chain; 0: the stream does.
  std::int64_t Columns() const;

  struct Pass {
    RowWorkers& workers;
    std::int64_t count;              // of rows
    std::int64_t block = kRowBlock;  // rows of a block; of a pass that keeps activations, kRowBlock
  };
  // x: [count, width] float32. value: [count, in]; undefined where the first stage reads the
  // stream. out: what leaves the chain; undefined: a value that nobody wants. keep: Backward()
  // follows.
  void Forward(const Pass& pass, const at::Tensor& x, const at::Tensor& value,
               const at::Tensor& out, bool keep);

  // value_out: the value that left the chain, if one did. d_x: the gradient of the stream that left
  // the chain, becomes that of the one that entered it. d_value_out: of value_out, undefined
  // without; its memory is changed. d_value: receives that of `value`, if that is defined. Adds to
  // the gradients of the parameters.
  void Backward(const Pass& pass, const at::Tensor& x, const at::Tensor& value,
                const at::Tensor& value_out, const at::Tensor& d_x, const at::Tensor& d_value_out,
                const at::Tensor& d_value) const;

 private:
  // The stage that makes the value which leaves the chain; their number if none does.
  std::size_t LastValue() const;

  std::vector<std::unique_ptr<RowStage>> stages_;
  at::ScalarType dtype_;
  // Of every stage: the values of products, and the numbers of rows; the rest is made again.
  std::vector<at::Tensor> values_;
  std::vector<std::vector<float>> kept_;
};

inline float* Data(const at::Tensor& tensor) { return tensor.mutable_data_ptr<float>(); }

// A contiguous tensor, or the rows of one, as the vector kernels take it.
inline Cells CellsOf(const at::Tensor& tensor) {
  return {tensor.data_ptr(), tensor.scalar_type() == at::kBFloat16};
}

inline DType DTypeOf(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kBFloat16 ? DType::kBFloat16 : DType::kFloat32;
}

}  // namespace tsallis::lab
