#include "lab/nn/sequence_model.h"

#include <cstddef>

namespace tsallis::lab {

SequenceScore SequenceScore::Of(std::int64_t sequences, std::vector<float> losses,
                                const std::vector<std::int64_t>& best,
                                const std::vector<std::int64_t>& label,
                                const std::vector<std::int64_t>& sequence) {
  SequenceScore score;
  score.sequences = sequences;
  score.is_exact.assign(static_cast<std::size_t>(sequences), true);
  for (std::size_t i = 0; i < losses.size(); ++i) {
    const bool hit = best[i] == label[i];
    score.loss += losses[i];
    score.hits += hit ? 1 : 0;
    if (!hit) score.is_exact[static_cast<std::size_t>(sequence[i])] = false;
  }
  score.scored = static_cast<std::int64_t>(losses.size());
  score.losses = std::move(losses);
  for (const bool exact : score.is_exact) score.exact += exact ? 1 : 0;
  return score;
}

}  // namespace tsallis::lab
