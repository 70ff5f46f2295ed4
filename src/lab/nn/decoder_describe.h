// The keys of a decoder, once each: name, value, check, help. The visitor reads them from TOML
// (TableReader), writes them as JSON or lists them (decoder_config.cc).
#pragma once

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "lab/base/toml_reader.h"
#include "lab/nn/decoder_config.h"
#include "lab/nn/maps.h"
#include "lab/nn/patterns.h"
#include "lab/nn/row_stages.h"

namespace tsallis::lab {

// Whether a visitor that writes leaves out later keys at their defaults, so that it still writes
// older configurations as they were.
template <class Visitor>
inline constexpr bool kLeavesOut = false;

// A key that was added later: older files, which are still read, do not have it.
template <class Visitor, class T>
void Later(Visitor& keys, const char* key, T& value, const T& fallback, const Check<T>& check,
           const char* help) {
  if (kLeavesOut<Visitor> && value == fallback) return;
  keys.Optional(key, value, check, help);
}

template <class Visitor>
void Describe(Visitor& keys, QueryScaling& scaling) {
  keys.Optional("kind", scaling.kind, OneOf(Names(QueryScalings())),
                "what multiplies the query of a row");
  keys.Optional("delta", scaling.delta, {}, "scalar, adaptive: the additive term");
  Later(keys, "learn_delta", scaling.learn_delta, false, {},
        "scalar, adaptive: one delta a head is learned, and begins at delta");
  keys.Optional("gamma_range", scaling.gamma_range, Positive<double>(),
                "adaptive: bound of the exponent gamma");
  keys.Optional("bias", scaling.bias, {}, "adaptive: whether beta and gamma have a bias");
  keys.Optional("init", scaling.init, Within(0.0, 1.0, "0 <= init <= 1"),
                "adaptive: standard deviation of the first weights");
  keys.Optional("positions", scaling.positions,
                Within<std::int64_t>(0, 1 << 24, "0 <= positions <= 2^24"),
                "table: positions with an entry of their own");
  keys.Optional("heads", scaling.heads, OneOf({"auto", "all"}),
                "auto: under nape only the heads without ALiBi");
}

template <class Visitor>
void Describe(Visitor& keys, RopeScaling& scaling) {
  keys.Optional("kind", scaling.kind, OneOf({"none", "linear", "ntk", "yarn", "llama3"}),
                "how frequencies change to reach further");
  keys.Optional("factor", scaling.factor, Within(1.0, 1e6, "1 <= factor <= 10^6"),
                "linear, yarn, llama3: how many times further");
  keys.Optional("train_length", scaling.train_length, IfGiven(Positive<std::int64_t>()),
                "ntk, yarn, llama3: length that was trained at");
  keys.Optional("beta_fast", scaling.beta_fast, Positive<double>(),
                "yarn: turns above which a frequency stays");
  keys.Optional("beta_slow", scaling.beta_slow, Positive<double>(),
                "yarn: turns below which it is interpolated");
  keys.Optional("high_frequency", scaling.high_frequency, Positive<double>(),
                "llama3: turns above which a frequency stays");
  keys.Optional("low_frequency", scaling.low_frequency, Positive<double>(),
                "llama3: turns below which it is interpolated");
  keys.Optional("attention_factor", scaling.attention_factor, IfGiven(Positive<double>()),
                "multiplies cosines and sines; yarn: 0.1 ln factor + 1 unless given");
}

template <class Visitor>
void Describe(Visitor& keys, Positions& positions) {
  keys.Optional("kind", positions.kind, OneOf(Names(PositionKinds())), "how positions enter");
  keys.Optional("base", positions.base, Within(1.0 + 1e-9, 1e12, "1 < base <= 10^12"),
                "rope, sinusoidal: base of the frequencies");
  keys.Optional("kept", positions.kept, Within(0.0, 1.0, "0 <= kept <= 1"),
                "rope: share of frequencies that turn (p-RoPE)");
  keys.Optional("kept_base", positions.kept_base,
                IfGiven(Within(1.0 + 1e-9, 1e12, "kept_base > 1")),
                "rope: spreads the kept frequencies from 1 to 1 / kept_base");
  keys.Optional("scaling", positions.scaling, {}, "rope: reaching further than in training");
  keys.Optional("slopes", positions.slopes,
                OneOf({"harmonic", "geometric", "slow", "halving", "given"}),
                "alibi, nape: 1/h, 2^(-8h/H), 2^(-h/H), 2^(1-h), or given");
  keys.Optional("given", positions.given, {}, "alibi, nape: the slopes themselves");
  keys.Optional("learn_slopes", positions.learn_slopes, {}, "alibi, nape: slopes are parameters");
  keys.Optional("share", positions.share, Within(0.0, 1.0, "0 <= share <= 1"),
                "nape: share of heads with ALiBi, the first");
}

template <class Visitor>
void Describe(Visitor& keys, PatternConfig& pattern) {
  const auto number = [&](const char* key, std::int64_t& value, const char* help) {
    keys.Optional(key, value, Within<std::int64_t>(0, 1 << 30, "0 to 2^30"), help);
  };
  keys.Optional("kind", pattern.kind, OneOf(Names(Patterns())), "which tokens a query sees");
  number("window", pattern.window, "window, longformer, bigbird: the newest tokens that are seen");
  number("global_tokens", pattern.global_tokens,
         "global, longformer, bigbird: the first tokens that are seen");
  number("random", pattern.random, "random, bigbird: blocks for every block of queries");
  number("random_block", pattern.random_block, "random, bigbird: tokens of a block");
  number("seed", pattern.seed, "random, bigbird: seed of the drawn blocks");
  number("stride", pattern.stride, "strided: the window, and the distance of other tokens");
  number("segment", pattern.segment, "fixed: tokens of a segment");
  number("summary", pattern.summary, "fixed: tokens at its end that all later ones see");
}

inline Check<std::vector<double>> CoefficientsCheck() {
  return [](const std::vector<double>& coefficients) -> std::string {
    const bool finite = std::all_of(coefficients.begin(), coefficients.end(),
                                    [](double c) { return std::isfinite(c); });
    const bool fine = finite && !coefficients.empty() && coefficients.size() <= 17;
    return fine ? "" : "1 to 17 finite numbers, lowest degree first";
  };
}

// The numbers of single maps.
template <class Visitor>
void DescribeNumbers(Visitor& keys, MapConfig& config) {
  const MapConfig defaults;
  Later(keys, "top_k", config.top_k, defaults.top_k,
        Within<std::int64_t>(1, 1 << 30, "1 <= top_k <= 2^30"),
        "top-k-softmax: scores that are kept");
  Later(keys, "top_k_fraction", config.top_k_fraction, defaults.top_k_fraction,
        Within(0.0, 1.0, "0 <= top_k_fraction <= 1"),
        "top-k-softmax: at least this share of the visible keys is kept");
  keys.Optional("sigmoid_bias", config.sigmoid_bias, {},
                "sigmoid: b; minus ln of the number of visible keys unless given");
  keys.Optional("coefficients", config.coefficients, IfGiven(CoefficientsCheck()),
                "adaptive-temperature: its polynomial, lowest degree first");
}

template <class Visitor>
void Describe(Visitor& keys, AttentionConfig& attention) {
  const AttentionConfig defaults;
  keys.Optional("map", attention.map, OneOf(Names(Maps())), "scores to weights");
  keys.Optional("alpha", attention.alpha, Within(1.0, 1e4, "1 <= alpha <= 10000"),
                "entmax; the first value if learned");
  keys.Optional("learn_alpha", attention.learn_alpha, OneOf({"no", "sigmoid", "free"}),
                "entmax: one alpha a head, 1 + sigmoid(a) or 1 + softplus(a)");
  Later(keys, "alpha_spread", attention.alpha_spread, defaults.alpha_spread,
        Within(0.0, 100.0, "0 <= alpha_spread <= 100"),
        "standard deviation of the heads' first a; 0: all start at alpha");
  DescribeNumbers(keys, attention);
  Later(keys, "sink", attention.sink, defaults.sink, OneOf({"none", "zero", "learned"}),
        "softmax, entmax: one more key of value 0, of the score 0 or of a learned one");
  keys.Optional("length_scaling", attention.length_scaling, {}, "scores against length");
  keys.Optional("positions", attention.positions, {}, "how positions enter");
  Later(keys, "pattern", attention.pattern, defaults.pattern, {}, "which tokens a query sees");
  keys.Optional("scale_invariant", attention.scale_invariant,
                IfGiven(Within(0.0, 1e12, "a value > 0, or 0 for none")),
                "length scale of scale-invariant attention; 0: none");
  keys.Optional("scale_invariant_alpha", attention.scale_invariant_alpha,
                IfGiven(Positive<double>()), "its alpha; e^(1/2) unless given");
  keys.Optional("scale_invariant_beta", attention.scale_invariant_beta, IfGiven(Positive<double>()),
                "its beta >= alpha ln alpha; e^(1/2) unless given");
}

// Shows a visitor the keys of an override: a reader notes those that are there, and a writer writes
// those that are given, at their defaults too.
template <class Visitor>
struct GivenKeys {
  Visitor& keys;
  std::set<std::string>& given;

  template <class T>
  void Optional(const std::string& key, T& value, const Check<T>& check, const char* help) {
    if constexpr (kLeavesOut<Visitor>) {
      if (!given.contains(key)) return;
    }
    keys.Optional(key, value, check, help);
    if constexpr (requires { keys.Has(key); }) {
      if (keys.Has(key)) given.insert(key);
    }
  }
};

template <class Visitor>
void Describe(Visitor& keys, AttentionOverride& change) {
  keys.Optional("layers", change.layers, {}, "layers it changes, from 0; all unless given");
  keys.Optional("heads", change.heads, {}, "heads it changes, from 0; all unless given");
  GivenKeys<Visitor> attention{keys, change.given};
  Describe(attention, change.attention);
}

template <class Visitor>
void Describe(Visitor& keys, DecoderConfig& decoder) {
  const DecoderConfig defaults;
  const auto size = [](std::int64_t most) {
    return Within<std::int64_t>(1, most, "1 to " + std::to_string(most));
  };
  keys.Optional("vocabulary", decoder.vocabulary, Within<std::int64_t>(0, 1 << 24, "0 to 2^24"),
                "number of tokens; given by the task");
  keys.Optional("layers", decoder.layers, size(1024), "attention and feed-forward each");
  keys.Optional("width", decoder.width, size(1 << 16), "of the residual stream");
  keys.Optional("heads", decoder.heads, size(4096), "of every layer");
  keys.Optional("head_dim", decoder.head_dim, Within<std::int64_t>(0, 512, "0 to 512"),
                "0: width / heads");
  keys.Optional("feed_forward", decoder.feed_forward, size(1 << 20), "width of the hidden layer");
  Later(keys, "block", decoder.block, defaults.block, OneOf({"sandwich", "pre"}),
        "norms before and after attention and feed-forward, or before alone");
  Later(keys, "norm_gain", decoder.norm_gain, defaults.norm_gain, {}, "norms have a learned gain");
  Later(keys, "activation", decoder.activation, defaults.activation, OneOf(Names(Activations())),
        "of the feed-forward layer");
  Later(keys, "qk_norm", decoder.qk_norm, defaults.qk_norm, {},
        "queries and keys of every head are normed");
  Later(keys, "output_gate", decoder.output_gate, defaults.output_gate, {},
        "what heads give is gated by the layer's input");
  Later(keys, "embedding", decoder.embedding, defaults.embedding,
        OneOf({"scaled", "normed", "plain"}),
        "what embeddings become: times sqrt(width), normed, as they are");
  keys.Optional("compute", decoder.compute, OneOf({"auto", "float32", "bfloat16"}),
                "dtype of matrix products and attention");
  keys.Optional("attention", decoder.attention, {}, "how heads attend");
  keys.Optional("override", decoder.overrides, {},
                "changes to attention for some layers and heads");
}

}  // namespace tsallis::lab
