// Packed problems on pages, written by PutOnPages(): against the reference, and against the same
// keys in arrays.
#include "tsallis/pages.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "attention/pages.h"
#include "attention/testing/compare.h"
#include "attention/testing/problem.h"
#include "core/every_target.h"
#include "core/testing/environment.h"
#include "tsallis/error.h"

namespace tsallis {
namespace {

// The keys and values of a packed call on pages in a drawn order, in memory that held other things.
class Paged {
 public:
  Paged(const AttentionParams& params, std::int64_t page_size, bool screened, std::uint64_t seed)
      : size_(static_cast<std::int64_t>(SizeOf(params.q.dtype))) {
    std::mt19937_64 engine(seed);
    const AttentionRanges& ranges = params.ranges;
    std::vector<std::int64_t> counts;
    for (std::int64_t b = 0; b < params.batch; ++b) {
      const std::int64_t length = ranges.k_end[b] - ranges.k_begin[b];
      lengths_.push_back(length);
      counts.push_back((length + page_size - 1) / page_size);
      width_ = std::max(width_, counts.back());
      starts_.push_back(ranges.q_begin[b]);
    }
    starts_.push_back(params.batch > 0 ? ranges.q_end[params.batch - 1] : 0);
    arrays_.pages = std::accumulate(counts.begin(), counts.end(), std::int64_t{1});
    arrays_.page_size = page_size;
    std::vector<std::int64_t> free(static_cast<std::size_t>(arrays_.pages));
    std::iota(free.begin(), free.end(), 0);
    std::shuffle(free.begin(), free.end(), engine);
    for (const std::int64_t count : counts) {
      for (std::int64_t i = 0; i < width_; ++i) {
        table_.push_back(i < count ? free.back() : -1);
        if (i < count) free.pop_back();
      }
    }
    const auto array = [&](std::int64_t columns, std::vector<std::byte>& memory) {
      const std::int64_t row = columns + 1, head = page_size * row, page = params.kv_heads * head;
      memory.resize(static_cast<std::size_t>(arrays_.pages * page * size_));
      for (std::byte& byte : memory) byte = static_cast<std::byte>(engine());
      return MutableArray4{memory.data(), params.q.dtype, {page, head, row, 1}};
    };
    arrays_.k = array(params.head_dim, k_);
    arrays_.v = array(params.value_dim, v_);
    if (screened) {
      const auto head =
          page_size / kScreenKeys * static_cast<std::int64_t>(ScreenBytes(params.head_dim)) + 4;
      screen_.resize(static_cast<std::size_t>(arrays_.pages * params.kv_heads * head));
      for (std::byte& byte : screen_) byte = static_cast<std::byte>(engine());
      arrays_.screen = {screen_.data(), params.kv_heads * head, head};
    }
    for (std::int64_t b = 0; b < params.batch; ++b) Put(params, b, engine);
  }

  void Run(const Context& context, AttentionParams params, const AttentionOutputs& outputs) const {
    params.k = params.v = {};
    params.ranges = {};
    AttentionOnPages(context, params, pages(), outputs);
  }
  AttentionPages pages() const {
    AttentionPages pages;
    pages.pages = arrays_.pages;
    pages.page_size = arrays_.page_size;
    pages.k = arrays_.k;
    pages.v = arrays_.v;
    pages.screen = arrays_.screen;
    pages.table = {table_.data()};
    pages.table_width = pages.table_stride = width_;
    pages.lengths = {lengths_.data()};
    pages.query_starts = {starts_.data()};
    return pages;
  }

 private:
  // A sequence's tokens, in two pieces.
  void Put(const AttentionParams& params, std::int64_t b, std::mt19937_64& engine) {
    const std::int64_t length = lengths_[static_cast<std::size_t>(b)];
    const std::int64_t middle = static_cast<std::int64_t>(engine() % 64) * length / 64;
    const auto from = [&](const ConstArray4& rows, std::int64_t first) {
      ConstArray4 own = rows;
      own.data = static_cast<const std::byte*>(rows.data) +
                 (params.ranges.k_begin[b] + first) * rows.strides[2] * size_;
      return own;
    };
    for (const auto& [begin, end] :
         {std::pair(std::int64_t{0}, middle), std::pair(middle, length)}) {
      std::vector<std::int32_t> slots;
      for (std::int64_t i = begin; i < end; ++i) {
        const auto at = static_cast<std::size_t>(b * width_ + i / arrays_.page_size);
        slots.push_back(
            static_cast<std::int32_t>(table_[at] * arrays_.page_size + i % arrays_.page_size));
      }
      const PageTokens tokens{.tokens = end - begin,
                              .kv_heads = params.kv_heads,
                              .head_dim = params.head_dim,
                              .value_dim = params.value_dim,
                              .k = from(params.k, begin),
                              .v = from(params.v, begin),
                              .slots = {slots.data(), false}};
      PutOnPages({.threads = 2}, tokens, arrays_);
    }
  }

  std::int64_t size_, width_ = 0;
  std::vector<std::int64_t> lengths_, starts_, table_;
  std::vector<std::byte> k_, v_, screen_;
  PageArrays arrays_;
};

// Problems that pages serve, packed without rows between the sequences.
ProblemSpec DrawPacked(std::uint64_t seed, std::int64_t most) {
  ProblemSpec spec = DrawSpec(seed, most);
  spec.ragged = ProblemSpec::Ragged::kPacked;
  spec.gaps = false;
  spec.visible = 1.0;
  spec.block = spec.block_k = 0;
  spec.bias = false;
  spec.batch = std::max<std::int64_t>(spec.batch, 1) + static_cast<std::int64_t>(seed % 3);
  return spec;
}

Results RunPaged(const Problem& problem, std::int64_t page_size, bool screened, int threads = 1) {
  return problem.RunBy(
      [&](const Context&, const AttentionParams& params, const AttentionOutputs& outputs) {
        const Paged memory(params, page_size, screened, problem.spec().seed);
        memory.Run({.threads = threads}, params, outputs);
      },
      AttentionBackward, /*wants_backward=*/false, kWantAll);
}

TEST(AttentionOnPages, DrawnPackedProblemsMatchTheReference) {
  const std::uint64_t first = FromEnvironment("TSALLIS_SEED", 1);
  const std::uint64_t cases = FromEnvironment("TSALLIS_CASES", 80);
  for (std::uint64_t seed = first; seed < first + cases; ++seed) {
    const Problem problem(DrawPacked(seed, seed % 5 == 0 ? 500 : 90));
    if (problem.params().q_len * problem.params().batch == 0) continue;
    SCOPED_TRACE("TSALLIS_SEED=" + std::to_string(seed) +
                 " TSALLIS_CASES=1: " + problem.spec().Describe());
    const Expectation expectation(problem);
    const std::int64_t page_size = seed % 2 == 0 ? 64 : 128;
    const Results found = RunPaged(problem, page_size, true);
    EXPECT_EQ(expectation.Check(found), "");
    EXPECT_EQ(FirstDifference(found, RunPaged(problem, page_size, true, 3)), "");
    const Results plain = RunPaged(problem, 1 + static_cast<std::int64_t>(seed % 37), false);
    EXPECT_EQ(expectation.Check(plain), "");
    if (HasFailure()) return;
  }
}

// One query a sequence: bytes, pages, company and instruction sets of a kind change no bit.
TEST(AttentionOnPages, SingleTokensHaveTheBitsOfArrays) {
  for (std::uint64_t seed = 1; seed < 20; ++seed) {
    ProblemSpec spec;
    spec.seed = seed;
    spec.dtype = seed % 3 == 0   ? DType::kFloat16
                 : seed % 3 == 1 ? DType::kFloat32
                                 : DType::kBFloat16;
    spec.kv_heads = 2;
    spec.group = 1 + static_cast<std::int64_t>(seed % 5);
    spec.q_len = 1;
    spec.k_len = 100 + 60 * static_cast<std::int64_t>(seed);
    spec.head_dim = 21;
    spec.causal = true;
    spec.alpha = seed % 2 == 0 ? 1.5 : 2.0;
    spec.slopes = seed % 4 == 1;
    spec.sink = seed % 4 == 2;
    if (seed % 4 == 3) spec.scale_invariant = 5.0;
    const std::vector<std::int64_t> at = {0, 1};
    Problem problem(spec);
    const std::vector<std::int64_t> keys = {0, problem.params().k_len};
    AttentionParams& params = problem.params();
    params.ranges = {&at[0], &at[1], &keys[0], &keys[1], true};
    SCOPED_TRACE(spec.Describe());
    ForEachTarget([&](const std::string& target) {
      SCOPED_TRACE(target);
      const Results alone = problem.Run(&kDecodeAttention, 1, 0, false);
      EXPECT_EQ(FirstDifference(alone, RunPaged(problem, 64, false)), "");
      EXPECT_EQ(FirstDifference(alone, RunPaged(problem, 192, true, 2)), "");
    });
  }
}

std::string MistakeOf(const std::function<void()>& call) {
  try {
    call();
  } catch (const InvalidArgument& error) {
    return error.argument();
  }
  return {};
}

TEST(AttentionOnPages, NamesWhatIsWrong) {
  ProblemSpec spec;
  spec.ragged = ProblemSpec::Ragged::kPacked;
  spec.batch = 2;
  spec.k_len = 90;
  const Problem problem(spec);
  AttentionParams params = problem.params();
  const Paged memory(params, 64, true, 1);
  params.ranges = {};
  params.k = params.v = {};
  std::vector<float> out(static_cast<std::size_t>(params.heads * params.q_len * params.value_dim));
  const AttentionOutputs outputs{
      .out = {
          out.data(), DType::kFloat32, {0, params.q_len * params.value_dim, params.value_dim, 1}}};
  const auto mistake = [&](const auto& change) {
    AttentionPages pages = memory.pages();
    change(pages);
    return MistakeOf([&] { AttentionOnPages({}, params, pages, outputs); });
  };
  EXPECT_EQ(mistake([](AttentionPages&) {}), "");
  const std::vector<std::int64_t> falling = {3, 2, 4}, beyond = {0, 1, params.q_len + 1};
  EXPECT_EQ(mistake([&](AttentionPages& p) { p.query_starts = {falling.data()}; }),
            "pages.query_starts[1]");
  EXPECT_EQ(mistake([&](AttentionPages& p) { p.query_starts = {beyond.data()}; }),
            "pages.query_starts[2]");
  EXPECT_EQ(mistake([](AttentionPages& p) { ++p.screen.head; }), "pages.screen");
  EXPECT_EQ(mistake([](AttentionPages& p) {
              p.screen.data = static_cast<std::byte*>(p.screen.data) + 1;
            }),
            "pages.screen");
  EXPECT_EQ(mistake([](AttentionPages& p) { p.page_size = 63; }), "pages.screen");
}

TEST(PutOnPages, WritesNothingWhereSomethingIsWrong) {
  std::vector<float> k(24, 1.0f), v(24, 1.0f), k_pages(64, 0.0f), v_pages(64, 0.0f);
  const std::vector<std::int64_t> slots = {0, 3, 8, -1};
  PageTokens tokens{.tokens = 3,
                    .kv_heads = 2,
                    .head_dim = 4,
                    .value_dim = 4,
                    .k = {k.data(), DType::kFloat32, {0, 4, 8, 1}},
                    .v = {v.data(), DType::kFloat32, {0, 4, 8, 1}},
                    .slots = {slots.data()}};
  PageArrays pages{.pages = 2,
                   .page_size = 4,
                   .k = {k_pages.data(), DType::kFloat32, {32, 16, 4, 1}},
                   .v = {v_pages.data(), DType::kFloat32, {32, 16, 4, 1}},
                   .screen = {}};
  EXPECT_EQ(MistakeOf([&] { PutOnPages({}, tokens, pages); }), "tokens.slots[2]");
  EXPECT_EQ(std::accumulate(k_pages.begin(), k_pages.end(), 0.0f), 0.0f);
  tokens.tokens = 2;
  PutOnPages({}, tokens, pages);
  EXPECT_EQ(std::accumulate(k_pages.begin(), k_pages.end(), 0.0f), 16.0f);
  EXPECT_EQ(std::accumulate(v_pages.begin(), v_pages.end(), 0.0f), 16.0f);
  pages.screen.data = k_pages.data();
  EXPECT_EQ(MistakeOf([&] { PutOnPages({}, tokens, pages); }), "pages.screen");
  EXPECT_EQ(MistakeOf([&] { ScreenBytes(513); }), "head_dim");
  EXPECT_EQ(ScreenBytes(64), 64u * 77u);
}

}  // namespace
}  // namespace tsallis
