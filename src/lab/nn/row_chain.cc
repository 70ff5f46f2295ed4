#include "lab/nn/row_chain.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "core/parallel.h"

namespace tsallis::lab {
namespace {

using at::Tensor;
using Kind = RowStage::Kind;

// Rows of a weight's gradient that one thread makes at a time; every piece packs the activations
// anew.
constexpr std::int64_t kWeightRows = 1024;

Tensor Block(const Tensor& tensor, std::int64_t begin, std::int64_t count) {
  return tensor.defined() ? tensor.narrow(0, begin, count) : tensor;
}

// Gradients of a product's output, as the product that makes its weight's gradient reads them:
// [out, rows]. In bfloat16 they are transposed block by block, because torch's product takes twice
// as long on a transposed view (docs/log.md); in float32 the view costs nothing.
class OutputGradient {
 public:
  OutputGradient() = default;
  // `given`: gradients that stand somewhere already, or undefined. [rows, columns]
  OutputGradient(std::int64_t rows, std::int64_t columns, at::ScalarType dtype, const Tensor& given)
      : rows_(rows), columns_(columns), half_(dtype == at::kBFloat16), given_(given) {
    if (half_) {
      transposed_ = Room();
    } else if (!given.defined()) {
      given_ = at::empty({rows, columns}, dtype);
    }
  }

  // The memory of rows [begin, begin + count), to read or to write before Done(): [count, columns].
  Tensor At(std::int64_t begin, std::int64_t count, Buffer& scratch) const {
    return given_.defined() ? given_.narrow(0, begin, count)
                            : scratch.Rows(count, columns_, at::kBFloat16);
  }
  void Done(const Tensor& block, std::int64_t begin) const {
    if (!half_) return;
    RowKernels().transpose_halves(
        static_cast<const std::uint16_t*>(block.const_data_ptr()), block.size(0), columns_,
        static_cast<std::uint16_t*>(transposed_.data_ptr()) + begin, transposed_.size(1));
  }
  Tensor Transposed() const { return half_ ? transposed_.narrow(1, 0, rows_) : given_.t(); }

 private:
  // Rows of a multiple of 4 KB would share a few sets of the cache. The memory between them has to
  // hold numbers: torch's product of a strided matrix reads up to 31 of them and multiplies them by
  // 0.
  Tensor Room() const {
    const std::int64_t stride = (rows_ + 63) / 64 * 64 + 32;
    Tensor memory = at::empty({columns_, stride}, at::kBFloat16);
    memory.narrow(1, rows_, stride - rows_).zero_();
    return memory;
  }

  std::int64_t rows_ = 0, columns_ = 0;
  bool half_ = false;
  Tensor given_, transposed_;
};

// The gradient of a gain that blocks of rows sum up apart, so that their sum has one order.
class GainSums {
 public:
  GainSums() = default;
  GainSums(std::int64_t rows, std::int64_t columns)
      : partial_(at::zeros({(rows + kRowBlock - 1) / kRowBlock, columns})) {}

  // The sums of the block that begins at row `begin`: [columns].
  float* Of(std::int64_t begin) const {
    return partial_.defined() ? Data(partial_) + begin / kRowBlock * partial_.size(1) : nullptr;
  }

  void AddTo(const Parameter& gain) const {
    float* to = Data(gain.gradient);
    for (std::int64_t block = 0; block < partial_.size(0); ++block) {
      const float* from = Of(block * kRowBlock);
      for (std::int64_t k = 0; k < partial_.size(1); ++k) to[k] += from[k];
    }
  }

 private:
  Tensor partial_;  // [blocks, columns]
};

}  // namespace

Tensor Buffer::Rows(std::int64_t rows, std::int64_t columns, at::ScalarType dtype) {
  if (!memory_.defined() || memory_.numel() < rows * columns || memory_.scalar_type() != dtype) {
    memory_ = at::empty({rows * columns}, dtype);
  }
  return memory_.narrow(0, 0, rows * columns).view({rows, columns});
}

// ---- threads

void RowWorkers::ForTasks(std::int64_t count,
                          const std::function<void(std::int64_t, Scratch&)>& body) {
  const Context context{.threads = threads_};
  const auto workers = static_cast<std::size_t>(Workers(context, count));
  if (scratch_.size() < workers) scratch_.resize(workers);
  ParallelTasks(context, count, [&](std::int64_t task, int worker) {
    const at::AutoDispatchBelowADInplaceOrView no_autograd;
    body(task, scratch_[static_cast<std::size_t>(worker)]);
  });
}

void RowWorkers::ForBlocks(std::int64_t rows, std::int64_t block,
                           const std::function<void(std::int64_t, std::int64_t, Scratch&)>& body) {
  ForTasks((rows + block - 1) / block, [&](std::int64_t task, Scratch& scratch) {
    const std::int64_t begin = task * block;
    body(begin, std::min(rows, begin + block), scratch);
  });
}

void RowWorkers::AddWeightGradients(const std::vector<WeightGradient>& gradients) {
  struct Task {
    const WeightGradient* gradient;
    std::int64_t begin, end;
  };
  std::vector<Task> tasks;
  for (const WeightGradient& gradient : gradients) {
    const std::int64_t out = gradient.dy.size(0);
    for (std::int64_t begin = 0; begin < out; begin += kWeightRows) {
      tasks.push_back({&gradient, begin, std::min(out, begin + kWeightRows)});
    }
  }
  ForTasks(static_cast<std::int64_t>(tasks.size()), [&](std::int64_t index, Scratch& scratch) {
    const auto& [gradient, begin, end] = tasks[static_cast<std::size_t>(index)];
    Tensor product =
        scratch.product.Rows(end - begin, gradient->x.size(1), gradient->x.scalar_type());
    at::mm_out(product, gradient->dy.narrow(0, begin, end - begin), gradient->x);
    gradient->weight->gradient.narrow(0, begin, end - begin).add_(product);
  });
}

// ---- chains

RowChain::RowChain(std::vector<std::unique_ptr<RowStage>> stages, at::ScalarType dtype)
    : stages_(std::move(stages)), dtype_(dtype) {}

std::int64_t RowChain::Columns() const {
  const RowStage& last = *stages_.back();
  return last.kind() == Kind::kToStream ? 0 : last.columns();
}

namespace {

bool MakesValue(const RowStage& stage) {
  return stage.kind() == Kind::kFromStream || stage.kind() == Kind::kValue;
}

// Whether what this stage makes is kept for the gradient.
bool IsKept(const RowStage& stage) { return stage.Weight() != nullptr; }

}  // namespace

std::size_t RowChain::LastValue() const {
  if (Columns() == 0) return stages_.size();
  std::size_t last = stages_.size() - 1;
  while (!MakesValue(*stages_[last])) --last;
  return last;
}

void RowChain::Forward(const Pass& pass, const Tensor& x, const Tensor& value, const Tensor& out,
                       bool keep) {
  const std::size_t count = stages_.size(), last_value = LastValue();
  values_.resize(count);
  kept_.resize(count);
  for (std::size_t s = 0; keep && s < count; ++s) {
    const RowStage& stage = *stages_[s];
    const bool leaves = s == last_value && out.defined();
    if (IsKept(stage) && !leaves) values_[s] = at::empty({pass.count, stage.columns()}, dtype_);
    kept_[s].resize(static_cast<std::size_t>(pass.count * stage.Kept()));
  }
  std::vector<Tensor> whole = values_;  // what stages write to, of all rows
  // The last value goes to `out`, whatever is done to it in place afterwards.
  if (out.defined()) whole[std::min(last_value, count - 1)] = out;
  pass.workers.ForBlocks(
      pass.count, pass.block,
      [&](std::int64_t begin, std::int64_t end, RowWorkers::Scratch& scratch) {
        const std::int64_t size = end - begin;
        scratch.values.resize(std::max(scratch.values.size(), 2 * count));
        const Tensor stream = Block(x, begin, size);
        Tensor at_hand = Block(value, begin, size);
        for (std::size_t s = 0; s < count; ++s) {
          const RowStage& stage = *stages_[s];
          Tensor to = Block(whole[s], begin, size);
          if (!to.defined() && MakesValue(stage)) {
            to = scratch.values[s].Rows(size, stage.columns(), dtype_);
          }
          float* numbers = keep ? kept_[s].data() + begin * stage.Kept()
                                : Data(scratch.values[count + s].Rows(
                                      size, std::max<std::int64_t>(1, stage.Kept()), at::kFloat));
          stage.Forward({{begin, size}, stream, at_hand, to, numbers});
          if (MakesValue(stage)) at_hand = to;
        }
      });
}

void RowChain::Backward(const Pass& pass, const Tensor& x, const Tensor& value,
                        const Tensor& value_out, const Tensor& d_x, const Tensor& d_value_out,
                        const Tensor& d_value) const {
  const std::size_t count = stages_.size(), last_value = LastValue();
  // For all rows: the value that a stage takes (defined where it is kept), and, of products, the
  // input made again and the gradient of the output.
  std::vector<Tensor> taken(count), inputs(count);
  std::vector<OutputGradient> d_out(count);
  std::vector<GainSums> gains(count);
  Tensor at_hand = value;
  for (std::size_t s = 0; s < count; ++s) {
    const RowStage& stage = *stages_[s];
    taken[s] = at_hand;
    if (stage.Gain() != nullptr) gains[s] = GainSums(pass.count, stage.columns());
    if (stage.Weight() != nullptr) {
      const std::int64_t in = stage.Weight()->value.size(1);
      inputs[s] = at_hand.defined() ? at_hand : at::empty({pass.count, in}, dtype_);
      d_out[s] = OutputGradient(pass.count, stage.columns(), dtype_,
                                s == last_value ? d_value_out : Tensor());
    }
    if (MakesValue(stage)) at_hand = s == last_value ? value_out : values_[s];
  }
  pass.workers.ForBlocks(
      pass.count, pass.block,
      [&](std::int64_t begin, std::int64_t end, RowWorkers::Scratch& scratch) {
        const std::int64_t size = end - begin;
        scratch.gradients.resize(std::max(scratch.gradients.size(), 2 * count));
        // The memory of the gradient of stage s's output.
        const auto room = [&](std::size_t s) {
          return stages_[s]->Weight() != nullptr
                     ? d_out[s].At(begin, size, scratch.gradients[s])
                     : scratch.gradients[s].Rows(size, stages_[s]->columns(), dtype_);
        };
        const Tensor d_stream = Block(d_x, begin, size);
        Tensor d_at_hand = Block(d_value_out, begin, size);
        for (std::size_t s = count; s-- > 0;) {
          const RowStage& stage = *stages_[s];
          RowStage::Backwards block{{begin, size},
                                    Block(x, begin, size),
                                    Block(taken[s], begin, size),
                                    d_stream,
                                    {},
                                    stage.kind() == Kind::kToStream ? d_stream : d_at_hand,
                                    {},
                                    kept_[s].data() + begin * stage.Kept(),
                                    gains[s].Of(begin)};
          if (stage.kind() == Kind::kInPlace) {
            block.d_value = d_at_hand;
          } else if (stage.kind() != Kind::kFromStream) {
            std::ptrdiff_t maker = static_cast<std::ptrdiff_t>(s) - 1;
            while (maker >= 0 && !MakesValue(*stages_[static_cast<std::size_t>(maker)])) --maker;
            block.d_value =
                maker >= 0 ? room(static_cast<std::size_t>(maker)) : Block(d_value, begin, size);
          }
          // The product that reads what this stage makes needs it for its weight.
          if (MakesValue(stage) && !IsKept(stage)) block.out = Block(inputs[s + 1], begin, size);
          stage.Backward(block);
          if (stage.Weight() != nullptr) d_out[s].Done(d_at_hand, begin);
          d_at_hand = block.d_value;
        }
      });
  std::vector<RowWorkers::WeightGradient> weights;
  for (std::size_t s = 0; s < count; ++s) {
    const RowStage& stage = *stages_[s];
    if (stage.Gain() != nullptr) gains[s].AddTo(*stage.Gain());
    if (stage.Weight() != nullptr) {
      weights.push_back({d_out[s].Transposed(), inputs[s], stage.Weight()});
    }
  }
  pass.workers.AddWeightGradients(weights);
}

}  // namespace tsallis::lab
