// Edges that can be told by hand, and what the study refuses.
#include "lab/studies/analyses/sparsefinder.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "lab/base/paths.h"
#include "lab/testing/lab_test_support.h"

namespace tsallis::lab::sparsefinder {
namespace {

using at::Tensor;

constexpr std::int64_t kTokens = 64;

// Queries and keys of two kinds, in turns of 8 tokens: [tokens, 4] at 0 or at 10.
Tensor Turns() {
  return (at::arange(kTokens).floor_divide(8).remainder(2) * 10)
      .to(at::kFloat)
      .unsqueeze(1)
      .expand({kTokens, 4})
      .contiguous();
}

Tensor Near(std::int64_t n) {
  return Visible(n).logical_and(at::ones({n, n}, at::kBool).triu(1 - kNear));
}

std::vector<Predictor> Ways(const Tensor& q, const Tensor& k) {
  return LearnedOf({{q, k, {}, {}}}, at::eye(4), /*quick=*/false,
                   RandomStream(3, Purpose::kInit, 1));
}

TEST(SparsefinderEdges, JoinWhatIsAlike) {
  const Tensor x = Turns();
  const Tensor alike = (x.select(1, 0).unsqueeze(1) == x.select(1, 0).unsqueeze(0))
                           .logical_and(Visible(kTokens))
                           .logical_or(Near(kTokens));
  const Tensor first = Visible(kTokens).logical_and(at::arange(kTokens).lt(4).unsqueeze(0));
  std::map<std::string, int> families;
  for (const Predictor& way : Ways(x, x)) {
    ++families[way.family];
    const Tensor edges = way.edges(x, x);
    if (way.family == "tokens") {
      EXPECT_TRUE(at::equal(edges, alike)) << way.method << " " << way.setting;
    } else if (way.family == "global") {
      EXPECT_TRUE(at::equal(edges, alike.logical_or(first))) << way.method << " " << way.setting;
    } else if (way.chunk <= 8) {  // larger chunks hold both kinds
      EXPECT_TRUE(at::equal(edges.logical_and(alike), edges)) << way.method << " " << way.setting;
    }
    EXPECT_TRUE(at::equal(edges.logical_or(Near(kTokens)), edges)) << way.method;
  }
  EXPECT_EQ(families["tokens"], 6 + 6 + 7);
  EXPECT_EQ(families["global"], families["tokens"]);
  EXPECT_EQ(families["blocks"], 2 * 3 * 4);  // chunks of 64 make one block of 64 tokens
}

// Of four chunks each centre takes one of its kind: chunks of one kind are joined whole.
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
    const Tensor far = Visible(kTokens).logical_and(Near(kTokens).logical_not());
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
  for (const Predictor& way : PatternsOf(kTokens, 1)) ways.push_back(way);
  for (const Predictor& way : ways) {
    edges[way.method].push_back(way.edges(q, k).sum().item<std::int64_t>());
    EXPECT_EQ(way.edges(q, k).triu(1).sum().item<std::int64_t>(), 0) << way.method;
  }
  for (const auto& [method, counts] : edges) {
    const bool falls = method.starts_with("k-means") || method.starts_with("quantisation");
    if (method.starts_with("chunks of 16")) continue;  // of four chunks every share is one
    EXPECT_NE(counts.front(), counts.back()) << method;
    EXPECT_EQ(falls, counts.front() > counts.back()) << method;
    EXPECT_TRUE(falls || std::is_sorted(counts.begin(), counts.end())) << method;
  }
}

TEST(SparsefinderEdges, SampleOfAnotherLengthHasItsOwnPattern) {
  const std::vector<Predictor> patterns = PatternsOf(kTokens, 1);
  for (const std::int64_t n : {std::int64_t{5}, kTokens, std::int64_t{1}}) {
    const Tensor x = at::zeros({n, 4});
    EXPECT_EQ(patterns[0].edges(x, x).sum().item<std::int64_t>(),
              n == 1 ? 1 : 4 * n - 6);  // a window of 4
  }
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
  context.decoder = SourceDir() / "bench/models/rope";
  ExpectContains(UsageErrorOf([&] { lab::Sparsefinder(context); }),
                 "--decoder: expected a model whose heads have entmax with alpha above 1, got "
                 "softmax in layer 1");
}

}  // namespace
}  // namespace tsallis::lab::sparsefinder
