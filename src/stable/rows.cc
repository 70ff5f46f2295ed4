#include "stable/rows.h"

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "stable/arguments.h"
#include "stable/device.h"

namespace tsallis::stable {
namespace {

using Shape = std::vector<std::int64_t>;

Shape ShapeOf(const Tensor& tensor) { return {tensor.sizes().begin(), tensor.sizes().end()}; }

// `dim` counted from the front.
std::int64_t WrapDim(const Tensor& scores, std::int64_t dim) {
  const std::int64_t rank = scores.dim();
  if (rank == 0) throw InvalidArgument("scores", "at least one dimension", "a 0-d tensor");
  if (dim < -rank || dim >= rank) {
    throw std::out_of_range("dim: expected an integer in [" + std::to_string(-rank) + ", " +
                            std::to_string(rank - 1) + "], got " + std::to_string(dim));
  }
  return dim < 0 ? dim + rank : dim;
}

// One stride that walks every dimension but `dim` in order, if there is one.
std::optional<std::int64_t> RowStride(Sizes sizes, Sizes strides, std::int64_t dim) {
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

// The same of a tensor whose rows a kernel reads as they lie. A GPU's threads read neighbours of a
// row at once, so there they lie side by side.
std::optional<std::int64_t> ViewStride(const Tensor& tensor, std::int64_t dim, Reader reader) {
  if (reader == Reader::kDevice && tensor.size(dim) > 1 && tensor.stride(dim) != 1) {
    return std::nullopt;
  }
  return RowStride(tensor.sizes(), tensor.strides(), dim);
}

std::int64_t CountRows(Sizes sizes, std::int64_t dim) {
  std::int64_t rows = 1;
  for (std::int64_t d = 0; d < static_cast<std::int64_t>(sizes.size()); ++d) {
    if (d != dim) rows *= sizes[d];
  }
  return rows;
}

// The tensor with dimension `from` behind the others, or with the last one at `to`: a view.
Tensor Moved(const Tensor& tensor, std::int64_t from, std::int64_t to) {
  Shape sizes = ShapeOf(tensor), strides(tensor.strides().begin(), tensor.strides().end());
  for (Shape* numbers : {&sizes, &strides}) {
    const std::int64_t moved = (*numbers)[from];
    numbers->erase(numbers->begin() + from);
    numbers->insert(numbers->begin() + to, moved);
  }
  return Restrided(tensor, sizes, strides);
}

// A tensor seen as [rows, length], `length` along `dim` and rows in the order of the other
// dimensions. Where strides allow it the view is the tensor itself; `tensor` keeps it alive, or the
// copy that was needed.
struct InputRows {
  Tensor tensor;
  ConstRows rows;

  InputRows(const Tensor& given, std::int64_t dim, Reader reader) {
    const auto row_stride = ViewStride(given, dim, reader);
    rows = {nullptr, KernelDType(given), CountRows(given.sizes(), dim), given.size(dim), 0, 1};
    if (row_stride) {
      tensor = given.Share();
      rows.row_stride = *row_stride;
      rows.stride = given.stride(dim);
    } else {
      tensor = Contiguous(Moved(given, dim, given.dim() - 1));
      rows.row_stride = rows.length;
    }
    rows.data = tensor.data();
  }
};

// A new contiguous tensor of `like`'s shape to be written as rows. Finish() returns it.
class OutputRows {
 public:
  OutputRows(const Tensor& like, std::int64_t dim, std::int32_t dtype, Reader reader) : dim_(dim) {
    tensor_ = Empty(like.sizes(), dtype, like.device());
    rows_ = {nullptr, KernelDType(tensor_), CountRows(like.sizes(), dim), like.size(dim), 0, 1};
    if (const auto row_stride = ViewStride(tensor_, dim, reader)) {
      rows_.row_stride = *row_stride;
      rows_.stride = tensor_.stride(dim);
    } else {
      // No single stride leads from row to row, so write them aside.
      Shape sizes = ShapeOf(like);
      sizes.erase(sizes.begin() + dim);
      sizes.push_back(like.size(dim));
      tensor_ = Empty(sizes, dtype, like.device());
      rows_.row_stride = rows_.length;
      moved_ = true;
    }
    rows_.data = tensor_.mutable_data();
  }
  const MutableRows& rows() const { return rows_; }
  Tensor Finish() {
    if (!moved_) return std::move(tensor_);
    return Contiguous(Moved(tensor_, tensor_.dim() - 1, dim_));
  }

 private:
  Tensor tensor_;
  std::int64_t dim_;
  bool moved_ = false;  // tensor_ has the mapped dimension last
  MutableRows rows_;
};

void CheckAlpha(const Tensor& alpha, const Tensor& scores, const RowArguments& arguments) {
  const RowMap map = arguments.params.map;
  if (map != RowMap::kEntmax && map != RowMap::kNormmax) {
    throw InvalidArgument("alpha", std::string("none for ") + Name(map), "a tensor");
  }
  CheckFloating(alpha, "alpha");
  if (alpha.device() != scores.device()) {
    throw InvalidArgument("alpha", "the device of scores, " + scores.device().Name(),
                          alpha.device().Name());
  }
  bool fits = alpha.dim() <= scores.dim();
  const std::int64_t offset = scores.dim() - alpha.dim();
  for (std::int64_t d = 0; fits && d < alpha.dim(); ++d) {
    const std::int64_t size = alpha.size(d);
    fits = size == 1 || (d + offset != arguments.dim && size == scores.size(d + offset));
  }
  if (fits) return;
  throw InvalidArgument("alpha",
                        "a shape that broadcasts to that of scores, " + Text(scores.sizes()) +
                            ", with size 1 in dimension " + std::to_string(arguments.dim),
                        Text(alpha.sizes()));
}

// alpha of every row, in row order: float64 [rows], on the scores' device.
Tensor AlphaOfRows(const Tensor& alpha, const Tensor& scores, std::int64_t dim) {
  const Tensor wide = Cast(alpha, dtypes::kFloat64);
  Shape sizes = ShapeOf(scores), strides(sizes.size(), 0);
  const std::int64_t offset = scores.dim() - alpha.dim();
  for (std::int64_t d = 0; d < wide.dim(); ++d) {
    if (wide.size(d) != 1) strides[d + offset] = wide.stride(d);
  }
  sizes.erase(sizes.begin() + dim);
  strides.erase(strides.begin() + dim);
  return Contiguous(Restrided(wide, sizes, strides));
}

// Checks every argument but values that only kernels look at (alpha's range), and wraps `dim`.
void Prepare(const Tensor& scores, const std::optional<Tensor>& alpha, RowArguments& arguments) {
  if (arguments.mistake) throw InvalidArgument(*arguments.mistake);
  CheckFloating(scores, "scores");
  arguments.dim = WrapDim(scores, arguments.dim);
  if (alpha) CheckAlpha(*alpha, scores, arguments);
}

bool IsInteger(std::int32_t dtype) {
  const std::int32_t kinds[] = {dtypes::kInt64,
                                dtypes::kInt32,
                                dtypes::kUInt8,
                                aoti_torch_dtype_int8(),
                                aoti_torch_dtype_int16(),
                                aoti_torch_dtype_uint16(),
                                aoti_torch_dtype_uint32(),
                                aoti_torch_dtype_uint64()};
  return std::ranges::find(kinds, dtype) != std::end(kinds);
}

// Targets as the kernels read them.
Tensor Classes(const Tensor& scores, const Tensor& targets, const char* last) {
  CheckFloating(scores, "scores");
  WrapDim(scores, -1);
  if (!targets.defined()) throw InvalidArgument("targets", "a tensor", "None");
  if (!IsInteger(targets.dtype())) {
    throw InvalidArgument("targets", "an integer dtype", DTypeName(targets.dtype()));
  }
  if (targets.device() != scores.device()) {
    throw InvalidArgument("targets", "the device of scores, " + scores.device().Name(),
                          targets.device().Name());
  }
  const Sizes expected = scores.sizes().first(static_cast<std::size_t>(scores.dim() - 1));
  if (!std::ranges::equal(targets.sizes(), expected)) {
    throw InvalidArgument(
        "targets", std::string("the shape of scores without the ") + last + ", " + Text(expected),
        Text(targets.sizes()));
  }
  return Contiguous(Cast(targets, dtypes::kInt64));
}

// float32 for 16-bit scores: a loss is one number a row, and its gradient is added to others.
std::int32_t WideDType(const Tensor& scores) {
  return scores.dtype() == dtypes::kFloat64 ? dtypes::kFloat64 : dtypes::kFloat32;
}

}  // namespace

RowResults MapRows(const RowPasses& passes, const Tensor& scores,
                   const std::optional<Tensor>& alpha_rows, RowArguments& arguments,
                   bool want_stats) {
  Prepare(scores, alpha_rows, arguments);
  const DeviceScope scope(scores.device());
  const InputRows input(scores, arguments.dim, passes.reader);
  OutputRows output(scores, arguments.dim, scores.dtype(), passes.reader);
  RowResults results;
  RowStats stats;
  if (want_stats) {
    Shape shape = ShapeOf(scores);
    shape.erase(shape.begin() + arguments.dim);
    results.tau = Empty(shape, dtypes::kFloat64, scores.device());
    results.support_size = Empty(shape, dtypes::kInt64, scores.device());
    results.entropy = Empty(shape, dtypes::kFloat64, scores.device());
    stats = {results.tau.mutable_as<double>(), results.support_size.mutable_as<std::int64_t>(),
             results.entropy.mutable_as<double>()};
  }
  Tensor alphas;
  if (alpha_rows) {
    alphas = AlphaOfRows(*alpha_rows, scores, arguments.dim);
    arguments.params.alpha_per_row = alphas.data_as<double>();
  }
  Renamed([&] { passes.forward(arguments.params, input.rows, output.rows(), stats); });
  results.probabilities = output.Finish();
  return results;
}

RowGradients MapRowsBackward(const RowPasses& passes, const Tensor& d_probabilities,
                             const Tensor& scores, const Tensor& probabilities,
                             const std::optional<Tensor>& alpha_rows, RowArguments& arguments,
                             bool want_alpha) {
  Prepare(scores, alpha_rows, arguments);
  const auto check = [&](const Tensor& tensor, const char* argument) {
    if (tensor.dtype() != scores.dtype()) {
      throw InvalidArgument(argument, "the dtype of scores, " + DTypeName(scores.dtype()),
                            DTypeName(tensor.dtype()));
    }
    if (!std::ranges::equal(tensor.sizes(), scores.sizes())) {
      throw InvalidArgument(argument, "the shape of scores, " + Text(scores.sizes()),
                            Text(tensor.sizes()));
    }
  };
  check(d_probabilities, "d_probabilities");
  check(probabilities, "probabilities");
  const DeviceScope scope(scores.device());
  const InputRows s(scores, arguments.dim, passes.reader),
      p(probabilities, arguments.dim, passes.reader),
      dp(d_probabilities, arguments.dim, passes.reader);
  OutputRows output(scores, arguments.dim, scores.dtype(), passes.reader);
  Tensor alphas;
  RowGradients gradients;
  if (alpha_rows) {
    alphas = AlphaOfRows(*alpha_rows, scores, arguments.dim);
    arguments.params.alpha_per_row = alphas.data_as<double>();
    Shape shape = ShapeOf(scores);
    shape[arguments.dim] = 1;
    if (want_alpha) gradients.d_alpha = Empty(shape, dtypes::kFloat64, scores.device());
  }
  double* const d_alpha =
      gradients.d_alpha.defined() ? gradients.d_alpha.mutable_as<double>() : nullptr;
  Renamed(
      [&] { passes.backward(arguments.params, s.rows, p.rows, dp.rows, output.rows(), d_alpha); });
  gradients.d_scores = output.Finish();
  return gradients;
}

LossResults FenchelYoungLosses(const RowPasses& passes, const Tensor& scores, const Tensor& targets,
                               LossArguments& arguments, bool want_gradient) {
  if (arguments.mistake) throw InvalidArgument(*arguments.mistake);
  const Tensor classes = Classes(scores, targets, "classes");
  const DeviceScope scope(scores.device());
  const std::int64_t dim = scores.dim() - 1;
  const InputRows input(scores, dim, passes.reader);
  const Tensor losses = Empty(targets.sizes(), dtypes::kFloat64, scores.device());
  LossResults results;
  const auto run = [&](const MutableRows& d_scores) {
    Renamed([&] {
      passes.loss(arguments.params, input.rows, classes.data_as<std::int64_t>(),
                  arguments.ignore_index, losses.mutable_as<double>(), d_scores);
    });
  };
  if (want_gradient) {
    OutputRows output(scores, dim, WideDType(scores), passes.reader);
    run(output.rows());
    results.gradient = output.Finish();
  } else {
    run({});
  }
  results.losses = Cast(losses, WideDType(scores));
  return results;
}

std::tuple<Tensor, std::int64_t, double> FitTemperature(const Tensor& scores, const Tensor& targets,
                                                        std::int64_t degree, double theta_max,
                                                        double theta_step) {
  CheckFloating(scores, "scores");
  if (!scores.device().is_cpu()) {
    throw InvalidArgument("scores", "a tensor on the CPU, where the fit runs",
                          scores.device().Name());
  }
  const Tensor classes = Classes(scores, targets, "last dimension");
  if (degree < 0 || degree > 16) {
    throw InvalidArgument("degree", "0 to 16", std::to_string(degree));
  }
  // 16-bit scores have too few digits to tell temperatures apart.
  const Tensor wide = Cast(scores, WideDType(scores));
  const InputRows input(wide, wide.dim() - 1, Reader::kHost);
  const AdaptiveTemperatureFit fit = Renamed([&] {
    return FitAdaptiveTemperature(
        TorchContext(), input.rows, classes.data_as<std::int64_t>(),
        {.degree = static_cast<int>(degree), .theta_max = theta_max, .theta_step = theta_step});
  });
  const std::int64_t count[1] = {static_cast<std::int64_t>(fit.coefficients.size())};
  Tensor coefficients = Empty(count, dtypes::kFloat64, Device::Cpu());
  std::ranges::copy(fit.coefficients, coefficients.mutable_as<double>());
  return {std::move(coefficients), fit.samples, fit.rms_error};
}

}  // namespace tsallis::stable
