#include "lab/nn/sequence_model.h"

#include <ATen/ATen.h>

#include <cstddef>
#include <string>

#include "tsallis/error.h"

namespace tsallis::lab {
namespace {

void CheckTensor(const at::Tensor& tensor, const char* name, const TokenBatch& batch) {
  if (tensor.dim() == 2 && tensor.scalar_type() == at::kLong &&
      tensor.sizes() == batch.tokens.sizes()) {
    return;
  }
  throw InvalidArgument(name, "int64 [batch, n]",
                        std::string(c10::toString(tensor.scalar_type())) + " of rank " +
                            std::to_string(tensor.dim()));
}

}  // namespace

void CheckBatch(const TokenBatch& batch, std::int64_t vocabulary) {
  CheckTensor(batch.tokens, "tokens", batch);
  if (batch.labels.defined()) CheckTensor(batch.labels, "labels", batch);
  const std::int64_t sequences = batch.tokens.size(0), n = batch.tokens.size(1);
  const at::Tensor tokens = batch.tokens.contiguous();
  const at::Tensor labels = batch.labels.defined() ? batch.labels.contiguous() : at::Tensor();
  const at::Tensor lengths =
      batch.lengths.defined() ? batch.lengths.to(at::kLong).contiguous() : at::Tensor();
  if (lengths.defined() && (lengths.dim() != 1 || lengths.size(0) != sequences)) {
    throw InvalidArgument("lengths", "[batch]", "another shape");
  }
  const std::string tokens_there = "0 to " + std::to_string(vocabulary - 1);
  for (std::int64_t b = 0; b < sequences; ++b) {
    const std::int64_t length = lengths.defined() ? lengths.const_data_ptr<std::int64_t>()[b] : n;
    if (length < 1 || length > n) {
      throw InvalidArgument("lengths", "1 to " + std::to_string(n), std::to_string(length));
    }
    for (std::int64_t i = b * n; i < b * n + length; ++i) {
      const std::int64_t token = tokens.const_data_ptr<std::int64_t>()[i];
      if (token < 0 || token >= vocabulary) {
        throw InvalidArgument("tokens", tokens_there, std::to_string(token));
      }
      const std::int64_t label =
          labels.defined() ? labels.const_data_ptr<std::int64_t>()[i] : kNotScored;
      if (label != kNotScored && (label < 0 || label >= vocabulary)) {
        throw InvalidArgument("labels", tokens_there + ", or " + std::to_string(kNotScored),
                              std::to_string(label));
      }
    }
  }
}

void CheckWhole(const GradientOptions& options) {
  if (options.part == nullptr) return;
  throw InvalidArgument("options.part", "null: this model takes whole sequences", "a part");
}

SequenceScore SequenceScore::Of(std::int64_t sequences, const std::vector<at::Tensor>& losses,
                                const std::vector<at::Tensor>& best,
                                const std::vector<std::int64_t>& label,
                                const std::vector<std::int64_t>& sequence) {
  SequenceScore score;
  score.sequences = sequences;
  score.is_exact.assign(static_cast<std::size_t>(sequences), true);
  if (!losses.empty()) {
    const at::Tensor loss = at::cat(losses).cpu(), said = at::cat(best).cpu();
    score.scored = loss.numel();
    score.losses.assign(loss.const_data_ptr<float>(), loss.const_data_ptr<float>() + score.scored);
    for (std::size_t i = 0; i < score.losses.size(); ++i) {
      const bool hit = said.const_data_ptr<std::int64_t>()[i] == label[i];
      score.loss += score.losses[i];
      score.hits += hit ? 1 : 0;
      if (!hit) score.is_exact[static_cast<std::size_t>(sequence[i])] = false;
    }
  }
  for (const bool exact : score.is_exact) score.exact += exact ? 1 : 0;
  return score;
}

}  // namespace tsallis::lab
