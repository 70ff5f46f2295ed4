#include "lab/nn/sequence_part.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

namespace tsallis::lab {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

Tensor Trade(const SequencePart& part, const Tensor& x, std::int64_t cut, std::int64_t joined,
             std::int64_t total) {
  std::vector<std::int64_t> shape = x.sizes().vec();
  const auto there = static_cast<std::size_t>(joined);
  shape[static_cast<std::size_t>(cut)] = part.Own(x.size(cut)).second;
  std::vector<Tensor> sent;
  std::vector<std::int64_t> counts, received;
  for (int rank = 0; rank < part.size; ++rank) {
    const auto [begin, count] = ShareOf(x.size(cut), rank, part.size);
    sent.push_back(x.narrow(cut, begin, count).flatten());
    counts.push_back(sent.back().numel());
    shape[there] = ShareOf(total, rank, part.size).second;
    received.push_back(c10::multiply_integers(shape));
  }
  const Tensor got = part.exchange(at::cat(sent), counts, received);
  std::vector<Tensor> pieces = got.split_with_sizes(received);
  for (int rank = 0; rank < part.size; ++rank) {
    shape[there] = ShareOf(total, rank, part.size).second;
    Tensor& piece = pieces[static_cast<std::size_t>(rank)];
    piece = piece.view(shape);
  }
  return at::cat(pieces, joined);
}

struct KeptPart : torch::CustomClassHolder {
  SequencePart part;
};

class TradeFunction : public Function<TradeFunction> {
 public:
  static Tensor forward(AutogradContext* context, const Tensor& x, const SequencePart* part,
                        std::int64_t cut, std::int64_t joined, std::int64_t total) {
    const auto kept = c10::make_intrusive<KeptPart>();
    kept->part = *part;
    context->saved_data["part"] = c10::IValue::make_capsule(kept);
    context->saved_data["dimensions"] = std::vector<std::int64_t>{joined, cut, x.size(cut)};
    return Trade(*part, x, cut, joined, total);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto kept = context->saved_data.at("part").toCapsule();
    const std::vector<std::int64_t> back = context->saved_data.at("dimensions").toIntVector();
    const Tensor gradient =
        Trade(static_cast<KeptPart&>(*kept).part, gradients[0], back[0], back[1], back[2]);
    return {gradient, Tensor(), Tensor(), Tensor(), Tensor()};
  }
};

}  // namespace

std::pair<std::int64_t, std::int64_t> ShareOf(std::int64_t count, int rank, int size) {
  const std::int64_t begin = count * rank / size;
  return {begin, count * (rank + 1) / size - begin};
}

Tensor Traded(const SequencePart& part, const Tensor& x, std::int64_t cut, std::int64_t joined,
              std::int64_t total) {
  return TradeFunction::apply(x, &part, cut, joined, total);
}

}  // namespace tsallis::lab
