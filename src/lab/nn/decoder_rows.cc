#include "lab/nn/decoder_rows.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "lab/nn/sequence_model.h"
#include "tsallis/error.h"

namespace tsallis::lab {
namespace {

using at::Tensor;

// Rows of a product when sequences are extended by one token each: eight cost hardly more than one
// where weights come from memory.
constexpr std::int64_t kStepRows = 8;

void AddRow(DecoderRows& rows, std::int64_t token, std::int64_t position) {
  rows.token.push_back(token);
  rows.position.push_back(static_cast<std::int32_t>(position));
  ++rows.rows;
}

// One more sequence, of which `past` tokens are elsewhere.
void AddSequence(DecoderRows& rows, const std::vector<std::int64_t>& tokens, std::int64_t past,
                 std::int64_t vocabulary) {
  const auto count = static_cast<std::int64_t>(tokens.size());
  rows.packed = rows.packed || (rows.rows > 0 && rows.end[0] != count);
  rows.length = std::max(rows.length, past + count);
  rows.begin.push_back(rows.rows);
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t token = tokens[static_cast<std::size_t>(i)];
    if (token < 0 || token >= vocabulary) {
      throw InvalidArgument("tokens", "0 to " + std::to_string(vocabulary - 1),
                            std::to_string(token));
    }
    AddRow(rows, token, past + i);
  }
  rows.end.push_back(rows.rows);
  rows.last_begin.push_back(rows.rows - 1);
}

void AddBegins(DecoderRows& rows, const c10::Device& device) {
  std::vector<std::int64_t> begins = rows.begin;
  begins.push_back(rows.rows);
  rows.begins = at::tensor(begins, at::kLong).to(device);
}

void Finish(DecoderRows& rows, const c10::Device& device) {
  rows.tokens = at::tensor(rows.token, at::kLong).to(device);
  rows.positions = at::tensor(at::ArrayRef<std::int32_t>(rows.position), at::kInt).to(device);
  rows.for_scales = ScaleRows::Of(rows.positions);
}

}  // namespace

double DecoderRows::MeanNorm(const Tensor& matrix) const {
  const Tensor norms = matrix.norm(2, {1});
  if (norms.numel() == 0) return 0.0;
  return (counts.defined() ? norms.masked_select(counts) : norms).mean(at::kDouble).item<double>();
}

DecoderRows RowsOf(const TokenBatch& batch, std::int64_t vocabulary, const c10::Device& device,
                   bool padded, const SequencePart* part) {
  CheckBatch(batch, vocabulary);
  const bool labelled = batch.labels.defined();
  const std::int64_t sequences = batch.tokens.size(0), n = batch.tokens.size(1);
  const Tensor tokens = batch.tokens.contiguous();
  const Tensor labels = labelled ? batch.labels.contiguous() : Tensor();
  const Tensor lengths =
      batch.lengths.defined() ? batch.lengths.to(at::kLong).contiguous() : Tensor();
  const auto length_of = [&](std::int64_t b) {
    return lengths.defined() ? lengths.const_data_ptr<std::int64_t>()[b] : n;
  };
  DecoderRows rows;
  std::int64_t shortest = n;
  for (std::int64_t b = 0; b < sequences; ++b) {
    rows.length = std::max(rows.length, length_of(b));
    shortest = std::min(shortest, length_of(b));
  }
  std::int64_t first = 0;
  rows.reach = rows.length;
  if (part != nullptr) {
    const auto [begin, count] = part->Own(part->length);
    if (rows.length != count) {
      throw InvalidArgument(
          "batch.tokens",
          fmt::format("{} of each sequence, this process's share of {}", count, part->length),
          std::to_string(rows.length));
    }
    first = begin;
    rows.reach = part->length;
  }
  rows.packed = !padded && shortest < rows.length;
  std::vector<std::int64_t> counts;
  for (std::int64_t b = 0; b < sequences; ++b) {
    rows.begin.push_back(rows.rows);
    const std::size_t scored_before = rows.scored.size();
    for (std::int64_t i = 0; i < (padded ? rows.length : length_of(b)); ++i) {
      const bool counted = i < length_of(b);
      counts.push_back(counted ? 1 : 0);
      AddRow(rows, counted ? tokens.const_data_ptr<std::int64_t>()[b * n + i] : 0, first + i);
      const std::int64_t label =
          labelled ? labels.const_data_ptr<std::int64_t>()[b * n + i] : kNotScored;
      if (counted && (!labelled || label != kNotScored)) {
        rows.scored.push_back(rows.rows - 1);
        rows.sequence.push_back(b);
        if (labelled) rows.label.push_back(label);
      }
    }
    rows.end.push_back(rows.rows);
    rows.last_begin.push_back(rows.scored.size() > scored_before ? rows.scored[scored_before]
                                                                 : rows.rows - 1);
  }
  if (padded && shortest < rows.length) {
    rows.counts = at::tensor(counts, at::kLong).to(at::kBool).to(device);
  }
  Finish(rows, device);
  return rows;
}

DecoderRows RowsOf(const std::vector<std::vector<std::int64_t>>& sequences,
                   const std::vector<std::vector<std::int64_t>>& labels, std::int64_t vocabulary,
                   const c10::Device& device) {
  DecoderRows rows;
  for (std::size_t b = 0; b < sequences.size(); ++b) {
    for (std::size_t i = 0; i < sequences[b].size(); ++i) {
      if (!labels.empty() && labels[b][i] == kNotScored) continue;
      rows.scored.push_back(rows.rows + static_cast<std::int64_t>(i));
      rows.sequence.push_back(static_cast<std::int64_t>(b));
      if (!labels.empty()) rows.label.push_back(labels[b][i]);
    }
    AddSequence(rows, sequences[b], 0, vocabulary);
  }
  rows.reach = rows.length;
  AddBegins(rows, device);
  Finish(rows, device);
  return rows;
}

DecoderRows RowsOf(const TextCache& cache, std::int64_t vocabulary,
                   const std::vector<KvCache::Sequence>& sequences,
                   const std::vector<std::vector<std::int64_t>>& tokens,
                   const c10::Device& device) {
  if (tokens.size() != sequences.size()) {
    throw InvalidArgument("tokens", std::to_string(sequences.size()) + " lists, one a sequence",
                          std::to_string(tokens.size()));
  }
  DecoderRows rows;
  std::size_t longest = 0;
  for (std::size_t b = 0; b < tokens.size(); ++b) {
    if (tokens[b].empty()) {
      throw InvalidArgument("tokens[" + std::to_string(b) + "]", "one token or more", "none");
    }
    if (std::count(sequences.begin(), sequences.end(), sequences[b]) > 1) {
      throw InvalidArgument("sequences", "each once", std::to_string(sequences[b]) + " again");
    }
    longest = std::max(longest, tokens[b].size());
    AddSequence(rows, tokens[b], LengthOf(cache, sequences[b]), vocabulary);
    rows.scored.push_back(rows.rows - 1);
    rows.sequence.push_back(static_cast<std::int64_t>(b));
  }
  rows.reach = rows.length;
  if (!device.is_cpu()) {
    if (rows.packed) AddBegins(rows, device);
  } else if (longest == 1) {
    // Every product has kStepRows rows, however many sequences share the call: torch's sums depend
    // on the number of rows.
    rows.block = kStepRows;
    while (rows.rows % kStepRows != 0) {
      rows.scored.push_back(rows.rows);
      AddRow(rows, 0, 0);
    }
  }
  Finish(rows, device);
  return rows;
}

}  // namespace tsallis::lab
