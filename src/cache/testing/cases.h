// Shared by the cache's tests: rows of any dtype, answers from arrays or from a cache.
#pragma once

#include <cstdint>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "core/elements.h"
#include "tsallis/attention.h"
#include "tsallis/error.h"
#include "tsallis/kv_cache.h"

namespace tsallis::cache_testing {

// [heads][tokens][columns] of any dtype.
struct TokenRows {
  TokenRows(DType of, std::int64_t h, std::int64_t n, std::int64_t c)
      : dtype(of), heads(h), tokens(n), columns(c) {
    bytes.resize(static_cast<std::size_t>(h * n * c) * SizeOf(of));
  }
  void Set(std::int64_t i, double value) { StoreElement(bytes.data(), dtype, i, value); }
  double At(std::int64_t i) const { return LoadElement<double>(bytes.data(), dtype, i); }
  ConstArray4 Array(std::int64_t first = 0) const {
    return {bytes.data() + static_cast<std::size_t>(first * columns) * SizeOf(dtype),
            dtype,
            {heads * tokens * columns, tokens * columns, columns, 1}};
  }
  MutableArray4 Out() {
    return {bytes.data(), dtype, {heads * tokens * columns, tokens * columns, columns, 1}};
  }
  DType dtype;
  std::int64_t heads, tokens, columns;
  std::vector<std::byte> bytes;
};

inline TokenRows Normal(std::uint64_t seed, DType dtype, std::int64_t heads, std::int64_t tokens,
                        std::int64_t columns, double spread = 1.0) {
  TokenRows rows(dtype, heads, tokens, columns);
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal(0.0, spread);
  for (std::int64_t i = 0; i < heads * tokens * columns; ++i) rows.Set(i, normal(random));
  return rows;
}

inline std::string ErrorOf(const std::function<void()>& body) {
  try {
    body();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "no error";
}

struct Case {
  DType dtype = DType::kFloat32;
  std::int64_t tokens = 700, head_dim = 24, value_dim = 16, kv_heads = 2, group = 3;
  double alpha = 1.5, spread = 2.0;
  bool softmax = false, slopes = false, length_scale = false, sink = false;
  double scale_invariant = 0.0, softcap = 0.0, sink_shift = 0.0;
  std::int64_t left = -1, begin = 0;
  DecodeMode mode = {};
};

struct Answers {
  explicit Answers(const Case& c, std::int64_t q_len = 1)
      : out(c.dtype, c.kv_heads * c.group, q_len, c.value_dim),
        tau(static_cast<std::size_t>(c.kv_heads * c.group * q_len)),
        entropy(tau.size()),
        maximum(tau.size()),
        certificate(tau.size()),
        lost(tau.size()),
        support(tau.size()),
        scored(tau.size()),
        bytes_read(tau.size()) {}
  TokenRows out;
  std::vector<double> tau, entropy, maximum, certificate, lost;
  std::vector<std::int64_t> support, scored, bytes_read;

  bool Same(const Answers& other) const {
    const auto bits = [](const auto& a, const auto& b) {
      return std::memcmp(a.data(), b.data(), a.size() * sizeof a[0]) == 0;
    };
    return bits(out.bytes, other.out.bytes) && bits(tau, other.tau) &&
           bits(entropy, other.entropy) && bits(maximum, other.maximum) && support == other.support;
  }
};

class Terms {
 public:
  explicit Terms(const Case& c) {
    for (std::int64_t h = 0; h < c.kv_heads * c.group; ++h) {
      slopes_.push_back(h % 2 == 0 ? 0.05F * static_cast<float>(h + 1) : 0.0F);
      scales_.push_back(h % 3 == 2 ? -1.5F : 0.5F + 0.3F * static_cast<float>(h));
      sinks_.push_back(0.7 * static_cast<double>(h) - 1.0 + c.sink_shift);
    }
    if (c.slopes) terms_.alibi_slopes = {slopes_.data(), DType::kFloat32, {0, 1, 0, 1}};
    if (c.length_scale) terms_.length_scale = {scales_.data(), DType::kFloat32, {0, 1, 0, 1}};
    if (c.sink) terms_.sink = sinks_.data();
    terms_.scale_invariant = c.scale_invariant;
    terms_.softcap = c.softcap;
  }
  const AttentionTerms& operator*() const { return terms_; }

 private:
  AttentionTerms terms_;
  std::vector<float> slopes_, scales_;
  std::vector<double> sinks_;
};

inline Answers OnArrays(const Case& c, const TokenRows& q, const TokenRows& k, const TokenRows& v) {
  const Terms terms(c);
  Answers answers(c, q.tokens);
  AttentionParams params;
  params.batch = 1;
  params.heads = c.kv_heads * c.group;
  params.kv_heads = c.kv_heads;
  params.q_len = q.tokens;
  params.k_len = k.tokens;
  params.head_dim = c.head_dim;
  params.value_dim = c.value_dim;
  params.q = q.Array();
  params.k = k.Array();
  params.v = v.Array();
  params.map = c.softmax ? RowMap::kSoftmax : RowMap::kEntmax;
  params.alpha = c.alpha;
  params.mask.causal = true;
  params.mask.left = c.left;
  const std::int64_t end = k.tokens;
  params.ranges.k_begin = &c.begin;
  params.ranges.k_end = &end;
  params.terms = *terms;
  AttentionForward({.threads = 1}, params,
                   {.out = answers.out.Out(),
                    .tau = answers.tau.data(),
                    .support_size = answers.support.data(),
                    .entropy = answers.entropy.data(),
                    .maximum = answers.maximum.data()});
  return answers;
}

// account: whether it asks for what only decoding knows.
inline Answers OnCache(const Case& c, const KvCache& cache, KvCache::Sequence sequence,
                       const TokenRows& q, std::int64_t layer = 0, int threads = 1,
                       bool account = true) {
  const Terms terms(c);
  Answers answers(c, q.tokens);
  DecodeParams params;
  params.layer = layer;
  params.sequences = &sequence;
  params.batch = 1;
  params.heads = c.kv_heads * c.group;
  params.q_len = q.tokens;
  params.q = q.Array();
  params.map = c.softmax ? RowMap::kSoftmax : RowMap::kEntmax;
  params.alpha = c.alpha;
  params.mask.left = c.left;
  params.begin = &c.begin;
  params.terms = *terms;
  params.mode = c.mode;
  DecodeOutputs outputs{.out = answers.out.Out(),
                        .tau = answers.tau.data(),
                        .support_size = answers.support.data(),
                        .entropy = answers.entropy.data(),
                        .maximum = answers.maximum.data()};
  if (account) {
    outputs.certificate = answers.certificate.data();
    outputs.lost = answers.lost.data();
    outputs.scored = answers.scored.data();
    outputs.bytes_read = answers.bytes_read.data();
  }
  Decode({.threads = threads}, cache, params, outputs);
  return answers;
}

inline KvCacheShape ShapeOf(const Case& c, std::int64_t layers = 1) {
  return {layers, c.kv_heads, c.head_dim, c.value_dim, c.dtype};
}

}  // namespace tsallis::cache_testing
