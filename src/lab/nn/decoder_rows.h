// Batches and growing texts as the rows that models of sequences work on.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <vector>

#include "lab/nn/sequence_part.h"
#include "lab/nn/sequence_rows.h"
#include "lab/nn/text_cache.h"
#include "lab/tasks/token_batch.h"

namespace tsallis::lab {

struct DecoderRows : SequenceRows {
  std::vector<std::int64_t> token;     // [rows]
  at::Tensor tokens;                   // the same where the model is
  std::vector<std::int64_t> scored;    // rows whose logits are wanted, ascending
  std::vector<std::int64_t> label;     // [scored]; empty without labels
  std::vector<std::int64_t> sequence;  // [scored]
  at::Tensor counts;                   // [rows] bool: what is no padding; undefined: all

  // The mean norm of the rows of a matrix, [rows, ...], without padding.
  double MeanNorm(const at::Tensor& matrix) const;
};

// padded: sequences of equal length, the rest of which is padding. part: the batch is that of every
// sequence. InvalidArgument for what is no batch of a model with this vocabulary.
DecoderRows RowsOf(const TokenBatch& batch, std::int64_t vocabulary, const c10::Device& device,
                   bool padded, const SequencePart* part = nullptr);

// Sequences behind each other on any device, one list of tokens for each, and one of labels;
// without these all rows are wanted. InvalidArgument for a token that the vocabulary does not have.
DecoderRows RowsOf(const std::vector<std::vector<std::int64_t>>& sequences,
                   const std::vector<std::vector<std::int64_t>>& labels, std::int64_t vocabulary,
                   const c10::Device& device);

// New tokens of sequences of a cache. On the CPU rows of no sequence may follow.
DecoderRows RowsOf(const TextCache& cache, std::int64_t vocabulary,
                   const std::vector<KvCache::Sequence>& sequences,
                   const std::vector<std::vector<std::int64_t>>& tokens, const c10::Device& device);

}  // namespace tsallis::lab
