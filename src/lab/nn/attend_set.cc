#include "lab/nn/attend_set.h"

#include <vector>

#include "lab/nn/set_kernels.h"

namespace tsallis::lab {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr Context kOneThread{.threads = 1};

ConstRows Rows(const Tensor& matrix) {
  return {matrix.const_data_ptr<float>(), DType::kFloat32, matrix.size(0), matrix.size(1),
          matrix.size(1)};
}

MutableRows MutableRowsOf(const Tensor& matrix) {
  return {matrix.mutable_data_ptr<float>(), DType::kFloat32, matrix.size(0), matrix.size(1),
          matrix.size(1)};
}

// Carries the map's parameters through the autograd node.
struct MapHolder : torch::CustomClassHolder {
  explicit MapHolder(const RowMapParams& map) : params(map) {}
  RowMapParams params;
};

struct Encoded {
  Tensor z1, a1, z2, h;    // [sets * n, width]
  Tensor scores, weights;  // [sets, n]
  Tensor pooled;           // [sets, width]
};

Encoded Forward(const Tensor& items, const Tensor& u, const Tensor& w1, const Tensor& b1,
                const Tensor& w2, const Tensor& b2, const RowMapParams& map,
                const RowStats& stats) {
  const std::int64_t sets = items.size(0);
  const std::int64_t n = items.size(1);
  const std::int64_t width = w1.size(0);
  Encoded e;
  e.z1 = at::addmm(b1, items.view({sets * n, items.size(2)}), w1.t());
  e.a1 = at::empty_like(e.z1);
  Gelu(e.z1.const_data_ptr<float>(), e.a1.mutable_data_ptr<float>(), e.z1.numel());
  e.z2 = at::addmm(b2, e.a1, w2.t());
  e.h = at::empty_like(e.z2);
  Gelu(e.z2.const_data_ptr<float>(), e.h.mutable_data_ptr<float>(), e.z2.numel());
  e.scores = at::empty({sets, n}, items.options());
  e.weights = at::empty_like(e.scores);
  e.pooled = at::empty({sets, width}, items.options());
  SetScores(e.h.const_data_ptr<float>(), u.const_data_ptr<float>(),
            e.scores.mutable_data_ptr<float>(), sets, n, width);
  RowsForward(kOneThread, map, Rows(e.scores), MutableRowsOf(e.weights), stats);
  SetPool(e.weights.const_data_ptr<float>(), e.h.const_data_ptr<float>(),
          e.pooled.mutable_data_ptr<float>(), sets, n, width);
  return e;
}

// Items with a weight or a score gradient; every other item's gradient is exactly zero.
Tensor SupportRows(const Tensor& weights, const Tensor& d_scores) {
  const std::int64_t count = weights.numel();
  const float* p = weights.const_data_ptr<float>();
  const float* ds = d_scores.const_data_ptr<float>();
  Tensor rows = at::empty({count}, at::kLong);
  std::int64_t* out = rows.mutable_data_ptr<std::int64_t>();
  std::int64_t kept = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    out[kept] = i;
    kept += static_cast<std::int64_t>(p[i] != 0.0F || ds[i] != 0.0F);
  }
  return rows.narrow(0, 0, kept);
}

class AttendSetFunction : public torch::autograd::Function<AttendSetFunction> {
 public:
  static Tensor forward(AutogradContext* context, const Tensor& items, const Tensor& u,
                        const Tensor& w1, const Tensor& b1, const Tensor& w2, const Tensor& b2,
                        const RowMapParams* map) {
    const Encoded e = Forward(items, u, w1, b1, w2, b2, *map, {});
    context->save_for_backward({items, u, w2, e.z1, e.a1, e.z2, e.h, e.scores, e.weights});
    context->saved_data["map"] = c10::IValue::make_capsule(c10::make_intrusive<MapHolder>(*map));
    return e.pooled;
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const variable_list saved = context->get_saved_variables();
    const Tensor &items = saved[0], &u = saved[1], &w2 = saved[2], &z1 = saved[3], &a1 = saved[4],
                 &z2 = saved[5], &h = saved[6], &scores = saved[7], &weights = saved[8];
    const auto holder = context->saved_data["map"].toCapsule();
    const RowMapParams& map = static_cast<const MapHolder&>(*holder).params;
    const std::int64_t sets = items.size(0);
    const std::int64_t n = items.size(1);
    const std::int64_t width = w2.size(0);
    const Tensor d_pooled = grads[0].contiguous();

    Tensor d_weights = at::empty_like(weights);
    SetScores(h.const_data_ptr<float>(), d_pooled.const_data_ptr<float>(),
              d_weights.mutable_data_ptr<float>(), sets, n, width);
    Tensor d_scores = at::empty_like(scores);
    RowsBackward(kOneThread, map, Rows(scores), Rows(weights), Rows(d_weights),
                 MutableRowsOf(d_scores));
    Tensor d_u = at::empty_like(u);
    SetPool(d_scores.const_data_ptr<float>(), h.const_data_ptr<float>(),
            d_u.mutable_data_ptr<float>(), sets, n, width);

    const Tensor rows = SupportRows(weights, d_scores);
    const std::int64_t count = rows.size(0);
    const std::int64_t* index = rows.const_data_ptr<std::int64_t>();
    const bool all = count == sets * n;
    Tensor dz2 = at::empty({count, width}, u.options());
    SupportGradient(index, count, n, width, weights.const_data_ptr<float>(),
                    d_scores.const_data_ptr<float>(), d_pooled.const_data_ptr<float>(),
                    u.const_data_ptr<float>(), z2.const_data_ptr<float>(),
                    dz2.mutable_data_ptr<float>());
    const Tensor d_w2 = at::mm(dz2.t(), all ? a1 : a1.index_select(0, rows));
    const Tensor dz1 = at::mm(dz2, w2);
    GeluBackwardRows(index, count, width, z1.const_data_ptr<float>(), dz1.const_data_ptr<float>(),
                     dz1.mutable_data_ptr<float>());
    const Tensor x = items.view({sets * n, items.size(2)});
    const Tensor d_w1 = at::mm(dz1.t(), all ? x : x.index_select(0, rows));
    return {Tensor(), d_u, d_w1, dz1.sum(0), d_w2, dz2.sum(0), Tensor()};
  }
};

}  // namespace

Tensor AttendSet(const Tensor& items, const Tensor& u, const Tensor& w1, const Tensor& b1,
                 const Tensor& w2, const Tensor& b2, const RowMapParams& map, AttentionView* view) {
  if (torch::GradMode::is_enabled() && view == nullptr) {
    return AttendSetFunction::apply(items, u.contiguous(), w1, b1, w2, b2, &map);
  }
  RowStats stats;
  if (view != nullptr) {
    view->entropy = at::empty({items.size(0)}, at::kDouble);
    view->support_size = at::empty({items.size(0)}, at::kLong);
    stats.entropy = view->entropy.mutable_data_ptr<double>();
    stats.support_size = view->support_size.mutable_data_ptr<std::int64_t>();
  }
  const torch::NoGradGuard no_grad;
  const Encoded e = Forward(items, u.contiguous(), w1, b1, w2, b2, map, stats);
  if (view != nullptr) view->weights = e.weights;
  return e.pooled;
}

}  // namespace tsallis::lab
