// Sequences that are extended on a cache have the same logits as those read at once.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lab/base/device.h"
#include "lab/base/errors.h"
#include "lab/base/random.h"
#include "lab/nn/decoder.h"
#include "lab/testing/decoder_variants.h"
#include "tsallis/error.h"
#include "tsallis/kv_cache.h"

namespace tsallis::lab {
namespace {

using at::Tensor;
using Tokens = std::vector<std::int64_t>;

Tokens DrawTokens(std::int64_t count, std::int64_t vocabulary, std::uint64_t index) {
  RandomStream random(3, Purpose::kEval, index);
  Tokens tokens;
  while (static_cast<std::int64_t>(tokens.size()) < count) {
    tokens.push_back(random.Below(vocabulary));
  }
  return tokens;
}

// Logits at every token of a sequence that is read at once: [n, vocabulary].
Tensor AtOnce(Decoder& model, const Tokens& tokens) {
  return model.Forward({at::tensor(tokens, at::kLong).unsqueeze(0), Tensor(), Tensor()});
}

void ExpectLogits(const Tensor& got, const Tensor& expected, double tolerance,
                  const std::string& where) {
  const double size = expected.abs().max().item<double>();
  EXPECT_LT((got - expected).abs().max().item<double>(), tolerance * size) << where;
}

class EveryVariantGrows : public EveryVariant {
 protected:
  // `grows` has the weights of `model`.
  static void Grow(Decoder& model, Decoder& grows);
};

TEST_P(EveryVariantGrows, ToTheLogitsThatItHasAtOnce) {
  const DecoderConfig config = ConfigOf(GetParam());
  Shaken<> model(config, 5);
  Grow(model, model);
  Copied<> elsewhere(model, "pretend");
  Grow(model, elsewhere);
}

void EveryVariantGrows::Grow(Decoder& model, Decoder& grows) {
  const DecoderConfig& config = model.Config();
  if (config.attention.positions.scaling.kind == "ntk") {
    EXPECT_THROW(grows.StartDecoding(), UsageError);
    return;
  }
  const std::unique_ptr<DecodingState> decoding = grows.StartDecoding();
  // A prompt each, tokens one by one, a chunk for one and a token for the other, tokens again.
  const std::vector<Tokens> texts = {DrawTokens(90, config.vocabulary, 0),
                                     DrawTokens(84, config.vocabulary, 1)};
  std::vector<DecodingState::Sequence> sequences;
  std::vector<Tensor> expected;
  for (const Tokens& text : texts) {
    sequences.push_back(decoding->Create());
    expected.push_back(AtOnce(model, text));
  }
  std::vector<std::size_t> at = {0, 0};
  const auto extend = [&](std::size_t first, std::size_t second) {
    const std::size_t counts[] = {first, second};
    std::vector<DecodingState::Sequence> extended;
    std::vector<Tokens> tokens;
    for (std::size_t b = 0; b < 2; ++b) {
      if (counts[b] == 0) continue;
      extended.push_back(sequences[b]);
      const auto begin = texts[b].begin() + static_cast<std::ptrdiff_t>(at[b]);
      tokens.emplace_back(begin, begin + static_cast<std::ptrdiff_t>(counts[b]));
      at[b] += counts[b];
    }
    const Tensor logits = decoding->Extend(extended, tokens);
    std::int64_t row = 0;
    for (std::size_t b = 0; b < 2; ++b) {
      if (counts[b] == 0) continue;
      ExpectLogits(logits[row++], expected[b][static_cast<std::int64_t>(at[b]) - 1], 1e-3,
                   "sequence " + std::to_string(b) + " at " + std::to_string(at[b]));
    }
  };
  extend(5, 9);
  for (int i = 0; i < 4; ++i) extend(1, 1);
  extend(3, 1);
  extend(0, 2);
  extend(70, 60);  // over the edge of a page
  for (int i = 0; i < 8; ++i) extend(1, 1);
}

INSTANTIATE_TEST_SUITE_P(Decoder, EveryVariantGrows, testing::ValuesIn(Variants()),
                         [](const auto& variant) { return variant.param.name; });

TEST(DecoderOnACache, Bfloat16GrowsToNearlyTheSameLogits) {
  DecoderConfig config = Tiny();
  config.compute = "bfloat16";
  config.attention.map = "entmax";
  config.attention.positions.kind = "nape";
  Shaken<> model(config, 5);
  Copied<> elsewhere(model, "pretend");
  const Tokens text = DrawTokens(40, config.vocabulary, 0);
  const Tensor expected = AtOnce(model, text);
  for (Decoder* grows : std::initializer_list<Decoder*>{&model, &elsewhere}) {
    const std::unique_ptr<DecodingState> decoding = grows->StartDecoding();
    const DecodingState::Sequence sequence = decoding->Create();
    for (std::size_t i = 0; i < text.size(); ++i) {
      const Tensor logits = decoding->Extend({sequence}, {{text[i]}});
      ExpectLogits(logits[0], expected[static_cast<std::int64_t>(i)], 0.05, std::to_string(i));
    }
  }
}

// Whoever else is there, and for any number of threads.
TEST(DecoderOnACache, AStepHasTheSameBitsInEveryCompany) {
  const DecoderConfig config = Asentmax();
  Shaken<> model(config, 5);
  const std::unique_ptr<DecodingState> decoding = model.StartDecoding();
  std::vector<DecodingState::Sequence> sequences;
  std::vector<Tokens> next;
  std::vector<Tensor> alone;
  for (std::uint64_t i = 0; i < 19; ++i) {
    sequences.push_back(decoding->Create());
    decoding->Extend({sequences.back()},
                     {DrawTokens(3 + static_cast<std::int64_t>(i) * 7, config.vocabulary, i)});
    next.push_back(DrawTokens(1, config.vocabulary, 100 + i));
    const DecodingState::Sequence copy = decoding->Fork(sequences.back());
    alone.push_back(decoding->Extend({copy}, {next.back()})[0]);
    decoding->Free(copy);
  }
  for (const std::size_t count : {std::size_t{2}, std::size_t{8}, std::size_t{19}}) {
    std::vector<DecodingState::Sequence> forks;
    for (std::size_t i = 0; i < count; ++i) forks.push_back(decoding->Fork(sequences[i]));
    const Tensor logits =
        decoding->Extend(forks, {next.begin(), next.begin() + static_cast<std::ptrdiff_t>(count)});
    for (std::size_t i = 0; i < count; ++i) {
      EXPECT_TRUE(at::equal(logits[static_cast<std::int64_t>(i)], alone[i])) << count << " " << i;
      decoding->Free(forks[i]);
    }
  }
}

class DecoderOnDevices : public testing::TestWithParam<const char*> {};

TEST_P(DecoderOnDevices, WhatFailsLeavesSequencesAsTheyWere) {
  const DecoderConfig config = Tiny();
  Decoder model(config, 5, DeviceNamed(GetParam()));
  // Keys and values of every layer in float32.
  const std::int64_t page = 2 * config.layers * 64 * config.heads * config.HeadDim() * 4;
  const std::unique_ptr<DecodingState> decoding = model.StartDecoding(4 * page);
  const DecodingState::Sequence a = decoding->Create(), b = decoding->Create();
  const Tokens text = DrawTokens(60, config.vocabulary, 0);
  decoding->Extend({a, b}, {text, text});
  const DecodingState::Sequence c = decoding->Fork(a), d = decoding->Fork(b);
  const Tensor before = decoding->Extend({c, d}, {{1}, {2}});
  const auto full = [&](const std::vector<Tokens>& tokens) {
    return ErrorTextOf<CacheFull>([&] { decoding->Extend({a, b}, tokens); });
  };
  EXPECT_EQ(full({{1}, Tokens(10, 3)}), "the cache is full: 4 pages of " + std::to_string(page) +
                                            " bytes are in use, and max_bytes allows no more");
  EXPECT_THROW(decoding->Extend({a, b}, {{1}, {config.vocabulary}}), InvalidArgument);
  EXPECT_THROW(decoding->Extend({a, b}, {{1}, {}}), InvalidArgument);
  EXPECT_THROW(decoding->Extend({a, a}, {{1}, {2}}), InvalidArgument);
  EXPECT_THROW(decoding->Extend({a, b}, {{1}}), InvalidArgument);
  EXPECT_THROW(decoding->Extend({d + 1}, {{1}}), InvalidArgument);
  EXPECT_TRUE(at::equal(decoding->Extend({a, b}, {{1}, {2}}), before));
  EXPECT_EQ(decoding->Extend({}, {}).size(0), 0);
  // What is freed is used again.
  for (const DecodingState::Sequence sequence : {a, b, d}) decoding->Free(sequence);
  EXPECT_EQ(decoding->Extend({c}, {Tokens(190, 3)}).size(0), 1);
}

INSTANTIATE_TEST_SUITE_P(Both, DecoderOnDevices, testing::Values("cpu", "pretend"));

}  // namespace
}  // namespace tsallis::lab
