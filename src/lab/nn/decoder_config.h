// Describes a decoder: sizes, and for every layer and head the map, the length scaling and the
// positions of its attention (docs/definitions.md, M, L, P, A10). The same keys stand in a recipe,
// in config.json and in a checkpoint's metadata: Describe() in decoder_describe.h names each once,
// with its check and its help.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "lab/base/catalogue.h"
#include "lab/nn/maps.h"

namespace tsallis::lab {

// Length scaling (docs/definitions.md, L): what multiplies the query of row i (0-based); n_i = i +
// 2, as in the ASEntmax reference.
struct QueryScaling {
  std::string kind = "none";  // "none", "ssmax", "scalar", "adaptive", "table"
  double delta = 1.0;         // scalar, adaptive: the additive term; where it starts if learned
  bool learn_delta = false;   // scalar, adaptive: one delta a head
  double gamma_range = 2.0;   // adaptive: gamma = gamma_range tanh(..)
  bool bias = true;           // adaptive: c_beta and c_gamma
  // adaptive: standard deviation of the projections' first values; 0 starts every row at the same
  // c.
  double init = 0.02;
  std::int64_t positions =
      0;  // table: rows that have an entry of their own; later ones use the last
  // "auto": the heads without ALiBi under NAPE, otherwise all.
  std::string heads = "auto";  // "auto", "all"

  bool operator==(const QueryScaling&) const = default;
};

// How the frequencies of RoPE change to reach further than in training (docs/definitions.md, P3).
struct RopeScaling {
  std::string kind = "none";  // "none", "linear", "ntk", "yarn", "llama3"
  double factor = 16.0;       // linear, yarn, llama3: how many times further
  // ntk, yarn, llama3: the length that the frequencies were trained at; they need it. In a recipe
  // it is task.train_length's upper end unless given.
  std::optional<std::int64_t> train_length;
  double beta_fast = 32.0;      // yarn: turns within train_length above which nothing changes
  double beta_slow = 1.0;       // yarn: and below which all is interpolated
  double high_frequency = 4.0;  // llama3: the same two bounds
  double low_frequency = 1.0;   // llama3
  // Multiplies cosines and sines, so scores by its square; unset: 0.1 ln factor + 1 for yarn,
  // else 1.
  std::optional<double> attention_factor;

  bool operator==(const RopeScaling&) const = default;
};

// docs/definitions.md, P1-P6.
struct Positions {
  std::string kind = "nope";  // "nope", "sinusoidal", "rope", "alibi", "nape"
  // rope: base of the frequencies base^(-2i / head_dim).
  double base = 10000.0;
  double kept = 1.0;  // rope: share of the frequencies that turn, the fastest; below 1: p-RoPE
  // rope: spreads the kept frequencies from 1 to 1 / kept_base instead.
  std::optional<double> kept_base;
  RopeScaling scaling;
  // alibi, nape: slopes of the heads h = 1 ... H that have one: "harmonic" 1/h, "geometric"
  // 2^(-8h/H), "slow" 2^(-h/H), "halving" 2^(1-h), "given".
  std::string slopes = "harmonic";
  std::vector<double> given;  // slopes = "given": one a head that has one
  bool learn_slopes = false;  // slopes are parameters
  double share = 0.5;         // nape: share of the heads that have ALiBi, the first

  bool operator==(const Positions&) const = default;
};

// Which of the tokens so far a query sees (docs/definitions.md, A2; tsallis/patterns.h says what
// the numbers mean). The same in all layers and heads that have it.
struct PatternConfig {
  std::string kind = "none";       // of Patterns()
  std::int64_t window = 0;         // window, longformer, bigbird
  std::int64_t global_tokens = 0;  // global, longformer, bigbird
  std::int64_t random = 3;         // random, bigbird: blocks for every block of queries
  std::int64_t random_block = 64;  // random, bigbird: tokens of a block
  std::int64_t seed = 0;           // random, bigbird
  std::int64_t stride = 0;         // strided
  std::int64_t segment = 0;        // fixed
  std::int64_t summary = 0;        // fixed: tokens at the end of a segment that all see

  bool operator==(const PatternConfig&) const = default;
};

// How one head attends.
struct AttentionConfig : MapConfig {
  // entmax: "no"; "sigmoid": alpha = 1 + sigmoid(a); "free": alpha = 1 + softplus(a). One a head.
  std::string learn_alpha = "no";
  // The standard deviation of the first a of the heads around that of `alpha`; only if learned.
  double alpha_spread = 0.0;
  // softmax, entmax: one more key of every query, whose value is 0: "none", "zero" with the score
  // 0, "learned" with one learned score a head, at first 0.
  std::string sink = "none";
  QueryScaling length_scaling;
  Positions positions;
  PatternConfig pattern;
  // Length scale (docs/definitions.md, P7); not with alibi or nape. 0, in an override: none, and
  // no alpha and beta.
  std::optional<double> scale_invariant;
  // The law's alpha and beta beside it (P8); unset: e^(1/2).
  std::optional<double> scale_invariant_alpha, scale_invariant_beta;

  bool operator==(const AttentionConfig&) const = default;
};

// A table laid over the attention of some heads of some layers: a key that is not given stays, a
// table below it is replaced whole. Later overrides win. A map that differs drops the numbers of
// the map before it.
struct AttentionOverride {
  std::vector<std::int64_t> layers;  // from 0; empty: all
  std::vector<std::int64_t> heads;   // from 0; empty: all
  AttentionConfig attention;         // keys that are not given have their defaults
  std::set<std::string> given;       // keys of attention

  bool operator==(const AttentionOverride&) const = default;
};

struct DecoderConfig {
  std::int64_t vocabulary = 0;  // tokens; given by the task
  std::int64_t layers = 2;
  std::int64_t width = 256;
  std::int64_t heads = 8;
  std::int64_t head_dim = 0;  // 0: width / heads
  std::int64_t feed_forward = 1024;
  // The form of a block: x += n(f(n(x))) with norms of learned gain on both sides ("sandwich",
  // Gemma 2), or x += f(n(x)) ("pre").
  std::string block = "sandwich";
  bool norm_gain = true;  // norms have a learned gain; without, they are divisions alone
  std::string activation = "gelu-gated";  // of Activations()
  bool qk_norm = false;  // queries and keys of every head are divided by their root mean square
  // What heads give is multiplied by a sigmoid of a linear map of the layer's input, one number for
  // each head and element (Qiu et al. 2025, arXiv 2505.06708).
  bool output_gate = false;
  // The treatment of tokens' embeddings: times sqrt(width) ("scaled"), normed without a gain
  // ("normed"), or as they are ("plain").
  std::string embedding = "scaled";
  // The precision of matrix products and attention; weights, gradients, the residual stream and all
  // sums are float32. "auto": bfloat16 where FastBfloat16 (tsallis/cpu.h) says so.
  std::string compute = "auto";  // "auto", "float32", "bfloat16"
  AttentionConfig attention;
  std::vector<AttentionOverride> overrides;

  std::int64_t HeadDim() const { return head_dim > 0 ? head_dim : width / heads; }
  // How this head attends, overrides applied.
  AttentionConfig Head(std::int64_t layer, std::int64_t head) const;

  bool operator==(const DecoderConfig&) const = default;
};

// How many heads, the first, have a slope under these positions.
std::int64_t SlopedHeads(const Positions& positions, std::int64_t heads);

// Whether head h has a slope, and whether its queries are scaled by their row.
bool HasSlope(const AttentionConfig& config, std::int64_t heads, std::int64_t h);
bool IsScaled(const AttentionConfig& config, std::int64_t heads, std::int64_t h);

// Whether the heads of two decoders, equal in all but their attention, learn the same tensors:
// weights that one has trained fit the other.
bool LearnAlike(const DecoderConfig& a, const DecoderConfig& b);

// Throws UsageError naming the key (`path` before it) if the values do not fit each other.
void CheckDecoder(const DecoderConfig& config, const std::string& path = "model");

// Fills in head_dim and `compute` of a configuration that `check` accepts. automatic_compute: the
// value that "auto" stands for in this model.
DecoderConfig WithDefaults(DecoderConfig config,
                           void (*check)(const DecoderConfig& config, const std::string& path),
                           const std::string& automatic_compute);

// Every key with its value; what has no value is left out.
nlohmann::ordered_json ToJson(const DecoderConfig& config);
// The opposite, checked. Throws UsageError that names `source` and the key.
DecoderConfig DecoderFromJson(const nlohmann::ordered_json& json, const std::string& source);

// Every key: its name (dotted), its default and what it means.
struct DecoderKey {
  std::string name, fallback, help;
};
std::vector<DecoderKey> DecoderKeys();

const std::vector<CatalogueEntry>& QueryScalings();
const std::vector<CatalogueEntry>& PositionKinds();

}  // namespace tsallis::lab
