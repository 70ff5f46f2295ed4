// Edges that can be told by hand, and what the study refuses.
#include "lab/studies/analyses/sparsefinder.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>

#include "lab/base/paths.h"
#include "lab/nn/decoder.h"
#include "lab/nn/encoder_decoder.h"
#include "lab/testing/lab_test_support.h"
#include "torch/operators.h"

namespace tsallis::lab::sparsefinder {
namespace {

using at::Tensor;

constexpr std::int64_t kTokens = 64;

// Queries and keys of two kinds, in turns of 8 tokens: [tokens, 4] at -5 or at 5.
Tensor Turns() {
  return (at::arange(kTokens).floor_divide(8).remainder(2) * 10 - 5)
      .to(at::kFloat)
      .unsqueeze(1)
      .expand({kTokens, 4})
      .contiguous();
}

Tensor Before(std::int64_t n) { return Visible(Sight::kBefore, n, n); }

Tensor Near(std::int64_t n) {
  return Before(n).logical_and(at::ones({n, n}, at::kBool).triu(1 - kNear));
}

std::vector<Predictor> Ways(const Tensor& q, const Tensor& k, Sight sight = Sight::kBefore) {
  return LearnedOf(sight, {{q, k, {}, {}}}, at::eye(4), /*quick=*/false,
                   RandomStream(3, Purpose::kInit, 1));
}

TEST(SparsefinderEdges, JoinWhatIsAlike) {
  const Tensor x = Turns();
  const Tensor alike = (x.select(1, 0).unsqueeze(1) == x.select(1, 0).unsqueeze(0))
                           .logical_and(Before(kTokens))
                           .logical_or(Near(kTokens));
  const Tensor first = Before(kTokens).logical_and(at::arange(kTokens).lt(4).unsqueeze(0));
  std::map<std::string, int> families;
  for (const Predictor& way : Ways(x, x)) {
    ++families[way.family];
    const Tensor edges = way.edges(x, x);
    if (way.method.starts_with("Routing")) {  // a centre takes as many as others do
      const Tensor most = way.family == "tokens" ? alike : alike.logical_or(first);
      const bool whole = at::equal(edges, most);
      EXPECT_TRUE(way.setting > 2.0 ? at::equal(edges.logical_and(most), edges) : whole)
          << way.method << " " << way.setting;
    } else if (way.family == "tokens") {
      EXPECT_TRUE(at::equal(edges, alike)) << way.method << " " << way.setting;
    } else if (way.family == "global") {
      EXPECT_TRUE(at::equal(edges, alike.logical_or(first))) << way.method << " " << way.setting;
    } else if (way.chunk <= 8) {  // larger chunks hold both kinds
      EXPECT_TRUE(at::equal(edges.logical_and(alike), edges)) << way.method << " " << way.setting;
    }
    EXPECT_TRUE(at::equal(edges.logical_or(Near(kTokens)), edges)) << way.method;
  }
  EXPECT_EQ(families["tokens"], 6 + 6 + 7 + 5 + 5);
  EXPECT_EQ(families["global"], families["tokens"]);
  EXPECT_EQ(families["blocks"], 2 * 3 * 4);  // chunks of 64 make one block of 64 tokens
}

// Each centre takes one of four chunks, of its own kind: chunks of one kind are joined whole.
TEST(SparsefinderEdges, ChunksAreJoinedWhole) {
  const Tensor x = Turns();
  int seen = 0;
  for (const Predictor& way : Ways(x, x)) {
    if (way.family != "blocks") continue;
    ++seen;
    const Tensor ids = at::arange(kTokens).floor_divide(way.chunk);
    const Tensor held = way.blocks(x, x).index_select(0, ids).index_select(1, ids);
    const Tensor edges = way.edges(x, x);
    EXPECT_TRUE(at::equal(edges.logical_and(held), edges)) << way.method << " " << way.setting;
    EXPECT_EQ(way.blocks(x, x).triu(1).sum().item<std::int64_t>(), 0);
    // A chunk's pair far from the diagonal is joined as all of its block.
    const Tensor far = Before(kTokens).logical_and(Near(kTokens).logical_not());
    const std::int64_t chunks = kTokens / way.chunk;
    const Tensor blocks = edges.logical_and(far)
                              .view({chunks, way.chunk, chunks, way.chunk})
                              .to(at::kLong)
                              .sum({1, 3})
                              .tril(-2);
    EXPECT_TRUE(blocks.eq(0).logical_or(blocks.eq(way.chunk * way.chunk)).all().item<bool>())
        << way.method << " " << way.setting;
  }
  EXPECT_GT(seen, 0);
}

// More of a setting joins more (fewer, of clusters and buckets: on the whole).
TEST(SparsefinderEdges, GrowWithTheirSetting) {
  at::manual_seed(1);
  const Tensor q = at::randn({kTokens, 4}), k = at::randn({kTokens, 4});
  std::map<std::string, std::vector<std::int64_t>> edges;
  std::vector<Predictor> ways = Ways(q, k);
  for (const Predictor& way : PatternsOf(Sight::kBefore, kTokens, 1)) ways.push_back(way);
  for (const Predictor& way : ways) {
    edges[way.method].push_back(way.edges(q, k).sum().item<std::int64_t>());
    EXPECT_EQ(way.edges(q, k).triu(1).sum().item<std::int64_t>(), 0) << way.method;
  }
  for (const auto& [method, counts] : edges) {
    const bool falls = method.starts_with("k-means") || method.starts_with("quantisation") ||
                       method.starts_with("Reformer") || method.starts_with("Routing");
    if (method.starts_with("chunks of 16")) continue;  // of four chunks every share is one
    EXPECT_NE(counts.front(), counts.back()) << method;
    EXPECT_EQ(falls, counts.front() > counts.back()) << method;
    EXPECT_TRUE(falls || std::is_sorted(counts.begin(), counts.end())) << method;
  }
}

TEST(SparsefinderEdges, SampleOfAnotherLengthHasItsOwnPattern) {
  const std::vector<Predictor> patterns = PatternsOf(Sight::kBefore, kTokens, 1);
  for (const std::int64_t n : {std::int64_t{5}, kTokens, std::int64_t{1}}) {
    const Tensor x = at::zeros({n, 4});
    EXPECT_EQ(patterns[0].edges(x, x).sum().item<std::int64_t>(),
              n == 1 ? 1 : 4 * n - 6);  // a window of 4
  }
}

// Heads that see all of their sequence are joined with near keys on both sides, and those that look
// at another sequence, which has a length of its own, with what is alike alone.
TEST(SparsefinderEdges, OtherHeadsSeeOtherKeys) {
  const Tensor q = Turns(), k = Turns().narrow(0, 0, 40);
  const Tensor both = at::ones({kTokens, kTokens}, at::kBool).triu(1 - kNear).tril(kNear - 1);
  for (const Predictor& way : Ways(q, q, Sight::kAll)) {
    const Tensor edges = way.edges(q, q);
    EXPECT_TRUE(at::equal(edges.logical_or(both), edges)) << way.method;
    if (way.family == "tokens" && way.method == "distance") {
      EXPECT_TRUE(at::equal(edges, edges.t()));
      EXPECT_GT(edges.triu(kNear).sum().item<std::int64_t>(), 0);
    }
  }
  const Tensor alike = q.select(1, 0).unsqueeze(1) == k.select(1, 0).unsqueeze(0);
  for (const Predictor& way : Ways(q, k, Sight::kOther)) {
    const Tensor edges = way.edges(q, k);
    EXPECT_EQ(edges.sizes(), alike.sizes()) << way.method;
    if (way.family == "tokens" && !way.method.starts_with("Routing")) {
      EXPECT_TRUE(at::equal(edges, alike)) << way.method << " " << way.setting;
    }
    if (way.family == "blocks") {
      const Tensor held = way.blocks(q, k)
                              .index_select(0, at::arange(kTokens).floor_divide(way.chunk))
                              .index_select(1, at::arange(40).floor_divide(way.chunk));
      EXPECT_TRUE(at::equal(edges.logical_and(held), edges)) << way.method;
    }
  }
  // A window of 4 on either side of the diagonal: |i - j| <= 2.
  const Tensor window = PatternsOf(Sight::kOther, kTokens, 1)[0].edges(q, k);
  EXPECT_TRUE(at::equal(window, at::ones({kTokens, 40}, at::kBool).triu(-2).tril(2)));
}

// Of a small model with entmax in all heads.
DecoderConfig Sparse(std::int64_t layers) {
  DecoderConfig config;
  config.vocabulary = 12;
  config.layers = layers;
  config.width = 16;
  config.heads = 2;
  config.feed_forward = 16;
  config.attention.map = "entmax";
  return config;
}

// A small encoder-decoder whose heads see all pairs of an explicit mask answers as it does freely,
// to the bit; where they see none but themselves it does not; and what is handed out are the
// weights that the model attends with.
TEST(SparsefinderModels, AnEncoderDecoderIsRestrictedLikeADecoder) {
  DecoderConfig config = Sparse(2);
  config.block = "pre";
  config.attention.positions.kind = "sinusoidal";
  EncoderDecoder model(config, 5);
  const std::vector<LayerPlace> layers = model.Places();
  std::vector<std::string> names;
  for (const LayerPlace& layer : layers) names.push_back(NameOf(layer));
  EXPECT_EQ(names, (std::vector<std::string>{"encoder 1", "encoder 2", "decoder 1", "context 1",
                                             "decoder 2", "context 2"}));
  TokenBatch batch;
  batch.tokens = at::tensor({3, 4, 5, 6, 7, 8, 9, 3, 10, 5, 6, 7}, at::kLong).view({2, 6});
  const std::int64_t none = kNotScored;
  batch.labels =
      at::tensor({none, none, none, std::int64_t{7}, std::int64_t{8}, std::int64_t{9}, none, none,
                  std::int64_t{5}, std::int64_t{6}, std::int64_t{7}, std::int64_t{8}},
                 at::kLong)
          .view({2, 6});
  std::map<std::size_t, std::pair<std::int64_t, std::int64_t>> sizes;
  const auto all = [&](const LayerQueriesKeys& own) {
    sizes[own.layer] = {own.q.size(1), own.k.size(1)};  // of the last sample
    return Visible(layers[own.layer].sight, own.q.size(1), own.k.size(1))
        .unsqueeze(0)
        .expand({own.q.size(0), -1, -1});
  };
  const SequenceScore free = Evaluate(model, batch, nullptr);
  const SequenceScore whole = Evaluate(model, batch, all);
  EXPECT_EQ(free.losses, whole.losses);
  EXPECT_EQ(sizes[0], std::pair(std::int64_t{2}, std::int64_t{2}));
  EXPECT_EQ(sizes[3], std::pair(std::int64_t{4}, std::int64_t{2}));
  const SequenceScore alone = Evaluate(model, batch, [](const LayerQueriesKeys& own) {
    return at::eye(own.q.size(1), own.k.size(1), at::kBool)
        .unsqueeze(0)
        .expand({own.q.size(0), -1, -1});
  });
  EXPECT_NE(free.losses, alone.losses);
  TokenBatch one;
  one.tokens = batch.tokens.narrow(0, 0, 1);
  one.labels = batch.labels.narrow(0, 0, 1);
  int seen = 0;
  model.VisitLayers(one, [&](const LayerView& view) {
    const LayerQueriesKeys own = QueriesKeysOf(model, view, 0);
    ++seen;
    for (const std::int64_t h : {0, 1}) {
      const Tensor scores = own.q[h].matmul(own.k[h].t()) / std::sqrt(8.0);
      const Tensor found = view.Weights(0, h);
      ASSERT_EQ(found.sizes(), scores.sizes());
      EXPECT_TRUE(at::allclose(found.sum(1), at::ones({found.size(0)}), 1e-4, 1e-4));
      // The one of two keys of a row that has the larger score has the larger weight.
      const Tensor best =
          (scores.masked_fill(
               Visible(layers[own.layer].sight, scores.size(0), scores.size(1)).logical_not(),
               -1e30))
              .argmax(1);
      EXPECT_TRUE(at::equal(found.argmax(1), best)) << own.layer;
    }
  });
  EXPECT_EQ(seen, 6);
}

TEST(SparsefinderModels, ASinkTakesItsShareOfADecodersRows) {
  DecoderConfig config = Sparse(1);
  config.attention.sink = "learned";
  config.attention.positions.kind = "nope";
  Decoder model(config, 5);
  constexpr double kSink = 0.75;
  for (const auto& [name, value] : model.Parameters()) {
    if (name.ends_with("sink")) value.detach().fill_(kSink);
  }
  TokenBatch one;
  one.tokens = at::tensor({3, 4, 5, 6, 7, 8}, at::kLong).view({1, 6});
  one.labels = at::tensor({4, 5, 6, 7, 8, 9}, at::kLong).view({1, 6});
  int seen = 0;
  model.VisitLayers(one, [&](const LayerView& view) {
    const LayerQueriesKeys own = QueriesKeysOf(model, view, 0);
    for (const std::int64_t h : {0, 1}) {
      const Tensor scores = (own.q[h].matmul(own.k[h].t()) / std::sqrt(8.0))
                                .masked_fill(Before(6).logical_not(), -9e9);
      const Tensor rows = Entmax(at::cat({scores, at::full({6, 1}, kSink)}, 1));
      EXPECT_TRUE(at::allclose(view.Weights(0, h), rows.narrow(1, 0, 6), 1e-4, 1e-5));
      EXPECT_GT(rows.select(1, 6).min().item<double>(), 0.01);
      ++seen;
    }
  });
  EXPECT_EQ(seen, 2);
}

TEST(SparsefinderValues, LieBetweenSettings) {
  DataTable table("t", {"layer", "family", "method", "sparsity", "recall"});
  table.Add({"all", "tokens", "a", 40.0, 80.0});
  table.Add({"all", "tokens", "a", 90.0, 30.0});
  table.Add({"all", "tokens", "b", 60.0, 50.0});
  table.Add({"1", "tokens", "a", 50.0, 0.0});
  const std::vector<MethodValue> values = ValuesAt(table, "recall", 50.0);
  ASSERT_EQ(values.size(), 2U);
  EXPECT_NEAR(*values[0].value, 70.0, 1e-9);
  EXPECT_FALSE(values[1].value);  // one setting has nothing beside it
  EXPECT_EQ(CommonSparsity(table), 90.0);
  table.Add({"all", "tokens", "c", 20.0, 50.0});
  table.Add({"all", "tokens", "c", 50.0, 50.0});
  EXPECT_EQ(CommonSparsity(table), 50.0);
}

TEST(Sparsefinder, RefusesAModelWithoutZeros) {
  AnalysisContext context;
  context.quick = true;
  context.decoder = SourceDir() / "models/rope";
  ExpectContains(UsageErrorOf([&] { lab::Sparsefinder(context); }),
                 "--decoder: expected a model whose heads have entmax with alpha above 1, got "
                 "softmax in layer 1");
}

}  // namespace
}  // namespace tsallis::lab::sparsefinder
