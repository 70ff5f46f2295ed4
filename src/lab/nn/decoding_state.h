// The sequences that a model of sequences has read, and continues.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "lab/nn/decoder_config.h"
#include "lab/nn/text_cache.h"

namespace tsallis::lab {

// Keys and values of every layer on pages where the model is, shared by forks. A sequence holds
// those of its own tokens; where the model reads a source, those of the source stand in another
// sequence of the same cache.
class DecodingState {
 public:
  using Sequence = KvCache::Sequence;

  // One list of new tokens for each sequence.
  struct NewTokens {
    TextCache& cache;
    const std::vector<Sequence>& sequences;
    const std::vector<Sequence>& sources;  // of each; empty: the model reads none
    const std::vector<std::vector<std::int64_t>>& tokens;
  };
  // Adds them to the sequences, all or some of them if it throws, and returns Extend()'s logits.
  using Model = std::function<at::Tensor(const NewTokens&)>;

  // max_bytes: of pages; 0: no limit. UsageError for positions that change with the length of the
  // text (NTK-aware scaling): what is cached would be wrong for the next token.
  DecodingState(const DecoderConfig& config, bool reads_sources, std::int64_t max_bytes,
                const c10::Device& device, Model model);

  // Makes a sequence without tokens.
  Sequence Create();
  // Makes a sequence with the tokens of another.
  Sequence Fork(Sequence sequence);
  void Free(Sequence sequence);

  // Adds tokens to sequences, one list of one or more for each; [sequences, vocabulary] float32
  // on the CPU: the logits behind the last token of each. Throws CacheFull and InvalidArgument, and
  // then no sequence has changed.
  at::Tensor Extend(const std::vector<Sequence>& sequences,
                    const std::vector<std::vector<std::int64_t>>& tokens);

 private:
  Sequence SourceOf(Sequence sequence) const;

  TextCache cache_;
  bool reads_sources_;
  std::map<Sequence, Sequence> sources_;
  Model model_;
};

}  // namespace tsallis::lab
