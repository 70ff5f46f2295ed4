#include "lab/nn/sequence_part.h"

#include <ATen/ATen.h>

#include <memory>

#include "lab/nn/host_pass.h"

namespace tsallis::lab {
namespace {

using at::Tensor;

Tensor Trade(const SequencePart& part, const Tensor& x, std::int64_t cut, std::int64_t joined,
             std::int64_t total) {
  std::vector<std::int64_t> shape = x.sizes().vec();
  const auto there = static_cast<std::size_t>(joined);
  shape[static_cast<std::size_t>(cut)] = part.Own(x.size(cut)).second;
  Tensors sent;
  std::vector<std::int64_t> counts, received;
  for (int rank = 0; rank < part.size; ++rank) {
    const auto [begin, count] = ShareOf(x.size(cut), rank, part.size);
    sent.push_back(x.narrow(cut, begin, count).flatten());
    counts.push_back(sent.back().numel());
    shape[there] = ShareOf(total, rank, part.size).second;
    received.push_back(c10::multiply_integers(shape));
  }
  const Tensor got = part.exchange(at::cat(sent), counts, received);
  Tensors pieces = got.split_with_sizes(received);
  for (int rank = 0; rank < part.size; ++rank) {
    shape[there] = ShareOf(total, rank, part.size).second;
    Tensor& piece = pieces[static_cast<std::size_t>(rank)];
    piece = piece.view(shape);
  }
  return at::cat(pieces, joined);
}

class TradePass : public HostPass {
 public:
  TradePass(const SequencePart& part, std::int64_t cut, std::int64_t joined, std::int64_t total)
      : part_(part), cut_(cut), joined_(joined), total_(total) {}

  Tensors Forward(const Tensors& in, bool) override {
    size_ = in[0].size(cut_);
    return {Trade(part_, in[0], cut_, joined_, total_)};
  }
  Tensors Backward(Tensors& d_out) override {
    return {Trade(part_, d_out[0], joined_, cut_, size_)};
  }

 private:
  SequencePart part_;
  std::int64_t cut_, joined_, total_, size_ = 0;
};

}  // namespace

std::pair<std::int64_t, std::int64_t> ShareOf(std::int64_t count, int rank, int size) {
  const std::int64_t begin = count * rank / size;
  return {begin, count * (rank + 1) / size - begin};
}

Tensor Traded(const SequencePart& part, const Tensor& x, std::int64_t cut, std::int64_t joined,
              std::int64_t total) {
  return Record(std::make_unique<TradePass>(part, cut, joined, total), {x}).front();
}

}  // namespace tsallis::lab
