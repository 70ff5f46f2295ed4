#include "lab/nn/decoder_config.h"

#include <algorithm>
#include <cmath>
#include <concepts>
#include <map>
#include <type_traits>

#include <nlohmann/json.hpp>

#include "lab/base/errors.h"
#include "lab/nn/decoder_describe.h"

namespace tsallis::lab {
namespace {

using Json = nlohmann::ordered_json;

// ---- visitors -----------------------------------------------------------------------------------

class JsonWriter {
 public:
  Json json = Json::object();

  template <class T>
  void Optional(const std::string& key, T& value, const Check<T>&, const char*) {
    Write(key, value);
  }

 private:
  template <class T>
  static constexpr bool kTable = requires(JsonWriter& writer, T& value) {
    Describe(writer, value);
  };

  template <class T>
  static Json ValueOf(T& value) {
    if constexpr (kTable<T>) {
      JsonWriter writer;
      Describe(writer, value);
      return writer.json;
    } else {
      return value;
    }
  }

  template <class T>
  void Write(const std::string& key, T& value) {
    json[key] = ValueOf(value);
  }
  template <class T>
  void Write(const std::string& key, std::optional<T>& value) {
    if (value) json[key] = ValueOf(*value);
  }
  template <class T>
  void Write(const std::string& key, std::vector<T>& values) {
    if (values.empty()) return;
    Json& array = json[key] = Json::array();
    for (T& value : values) array.push_back(ValueOf(value));
  }
};

}  // namespace

template <>
inline constexpr bool kLeavesOut<JsonWriter> = true;

namespace {

class KeyLister {
 public:
  std::string prefix;
  std::vector<DecoderKey> keys;

  template <class T>
  void Optional(const std::string& key, T& value, const Check<T>&, const char* help) {
    if constexpr (std::same_as<T, std::vector<AttentionOverride>>) {
      AttentionOverride one;
      const std::size_t before = keys.size();
      Below(key, one);
      // What is not given stays, so that nothing has a default.
      for (std::size_t i = before; i < keys.size(); ++i) keys[i].fallback.clear();
    } else if constexpr (requires { Describe(*this, value); }) {
      Below(key, value);
    } else {
      JsonWriter writer;
      writer.Optional(key, value, {}, help);
      const auto found = writer.json.find(key);
      keys.push_back({prefix + key, found == writer.json.end() ? "" : found->dump(), help});
    }
  }

 private:
  template <class T>
  void Below(const std::string& key, T& value) {
    const std::string above = prefix;
    prefix += key + ".";
    Describe(*this, value);
    prefix = above;
  }
};

// Where the keys of a struct stand, and the copying of some of them into another one.
struct KeyMembers {
  std::map<std::string, const void*> at;

  template <class T>
  void Optional(const std::string& key, T& value, const Check<T>&, const char*) {
    at[key] = &value;
  }
};
class LayOver {
 public:
  LayOver(const KeyMembers& from, const std::set<std::string>& keys) : from_(from), keys_(keys) {}

  template <class T>
  void Optional(const std::string& key, T& value, const Check<T>&, const char*) {
    if (keys_.contains(key)) value = *static_cast<const T*>(from_.at.at(key));
  }

 private:
  const KeyMembers& from_;
  const std::set<std::string>& keys_;
};

// JSON as the table that the reader of recipes takes, so that there is one reader.
toml::table ToTable(const Json& json);
toml::array ToArray(const Json& json);

template <class Add>
void AddValue(const Json& value, const Add& add) {
  if (value.is_object()) {
    add(ToTable(value));
  } else if (value.is_array()) {
    add(ToArray(value));
  } else if (value.is_boolean()) {
    add(value.get<bool>());
  } else if (value.is_number_integer()) {
    add(value.get<std::int64_t>());
  } else if (value.is_number()) {
    add(value.get<double>());
  } else if (value.is_string()) {
    add(value.get<std::string>());
  } else {
    throw UsageError("expected a value that a key of a decoder can hold, got " + value.dump());
  }
}

toml::table ToTable(const Json& json) {
  toml::table table;
  for (const auto& entry : json.items()) {
    AddValue(entry.value(),
             [&](auto&& one) { table.insert(entry.key(), std::forward<decltype(one)>(one)); });
  }
  return table;
}

toml::array ToArray(const Json& json) {
  toml::array array;
  for (const Json& value : json) {
    AddValue(value, [&](auto&& one) { array.push_back(std::forward<decltype(one)>(one)); });
  }
  return array;
}

// ---- checks across keys -------------------------------------------------------------------------

[[noreturn]] void Refuse(const std::string& key, const std::string& what) {
  throw UsageError(key + ": " + what);
}

// Checks the settings that belong to some maps alone.
void CheckMap(const AttentionConfig& head, const std::string& path) {
  if (head.map == "top-k-softmax" && head.top_k < 1) {
    Refuse(path + ".top_k", "expected a number of keys >= 1 with map = \"top-k-softmax\"");
  }
  for (const auto& [key, map, given] : MapNumbers()) {
    if (given(head) && head.map != map) {
      Refuse(path + "." + key, fmt::format("only has an effect with map = \"{}\"", map));
    }
  }
  if (head.sink != "none" && !TakesSink(MapNamed(head.map))) {
    Refuse(path + ".sink", "expected map \"softmax\" or \"entmax\", got \"" + head.map + "\"");
  }
}

void CheckScaleInvariant(const AttentionConfig& head, const std::string& path) {
  const std::string& positions = head.positions.kind;
  const bool scale_invariant = head.scale_invariant.value_or(0.0) > 0.0;
  if (scale_invariant && (positions == "alibi" || positions == "nape")) {
    Refuse(path + ".scale_invariant",
           "expected positions \"nope\" or \"rope\", got \"" + positions + "\"");
  }
  for (const auto& [key, value] : {std::pair(".scale_invariant_alpha", head.scale_invariant_alpha),
                                   std::pair(".scale_invariant_beta", head.scale_invariant_beta)}) {
    if (value && !scale_invariant) {
      Refuse(path + key, "only has an effect beside scale_invariant");
    }
  }
  if (!head.scale_invariant_alpha && !head.scale_invariant_beta) return;
  const double alpha = head.scale_invariant_alpha.value_or(std::exp(0.5));
  const double beta = head.scale_invariant_beta.value_or(std::exp(0.5));
  if (!(alpha >= 1e-6 && alpha <= 1e6)) {
    Refuse(path + ".scale_invariant_alpha", fmt::format("expected 1e-6 to 1e6, got {}", alpha));
  }
  const double least = alpha * std::log(alpha);
  if (!(beta >= least * (1.0 - 1e-12) && beta <= 100.0 * alpha)) {
    Refuse(path + ".scale_invariant_beta",
           fmt::format("expected alpha ln alpha = {:.6g} to 100 alpha = {:.6g}, got {:.6g}", least,
                       100.0 * alpha, beta));
  }
}

void CheckHead(const DecoderConfig& config, const AttentionConfig& head, const std::string& path) {
  const Positions& positions = head.positions;
  const QueryScaling& scaling = head.length_scaling;
  if (head.learn_alpha != "no" && head.map != "entmax") {
    Refuse(path + ".learn_alpha", "only has an effect with map = \"entmax\"");
  }
  if (head.alpha_spread != 0.0 && head.learn_alpha == "no") {
    Refuse(path + ".alpha_spread", "only has an effect with a learned alpha (learn_alpha)");
  }
  if (head.learn_alpha == "sigmoid" && (head.alpha <= 1.0 || head.alpha >= 2.0)) {
    Refuse(
        path + ".alpha",
        fmt::format("expected 1 < alpha < 2 with learn_alpha = \"sigmoid\", got {}", head.alpha));
  }
  if (head.learn_alpha == "free" && head.alpha <= 1.0) {
    Refuse(path + ".alpha",
           fmt::format("expected alpha > 1 with learn_alpha = \"free\", got {}", head.alpha));
  }
  CheckMap(head, path);
  if (const PatternProblem problem = CheckPattern(head.pattern); !problem.key.empty()) {
    Refuse(path + ".pattern." + problem.key, problem.expected);
  }
  CheckScaleInvariant(head, path);
  if (scaling.learn_delta && scaling.kind != "scalar" && scaling.kind != "adaptive") {
    Refuse(path + ".length_scaling.learn_delta",
           "only has an effect with kind = \"scalar\" or \"adaptive\"");
  }
  if (scaling.kind == "table" && scaling.positions < 1) {
    Refuse(
        path + ".length_scaling.positions",
        "expected the number of positions that have an entry, at least 1, with kind = \"table\"");
  }
  const bool sloped = positions.kind == "alibi" || positions.kind == "nape";
  if (positions.kind == "rope" && config.HeadDim() % 2 != 0) {
    Refuse(
        path + ".positions.kind",
        fmt::format("\"rope\" turns pairs: expected an even head_dim, got {}", config.HeadDim()));
  }
  if (positions.kind == "rope" && positions.scaling.kind == "ntk" && config.HeadDim() < 4) {
    Refuse(path + ".positions.scaling.kind", "\"ntk\" needs head_dim >= 4");
  }
  const std::string& reach = positions.scaling.kind;
  if ((reach == "ntk" || reach == "yarn" || reach == "llama3") && !positions.scaling.train_length) {
    Refuse(path + ".positions.scaling.train_length",
           fmt::format("has to be given with kind = \"{}\"", reach));
  }
  if (positions.scaling.beta_slow >= positions.scaling.beta_fast) {
    Refuse(path + ".positions.scaling.beta_slow", "expected a value below beta_fast");
  }
  if (positions.scaling.low_frequency >= positions.scaling.high_frequency) {
    Refuse(path + ".positions.scaling.low_frequency", "expected a value below high_frequency");
  }
  if (positions.slopes == "given" && sloped) {
    const std::int64_t expected = SlopedHeads(positions, config.heads);
    if (static_cast<std::int64_t>(positions.given.size()) != expected) {
      Refuse(path + ".positions.given",
             fmt::format("expected {} slopes, one a head with ALiBi, got {}", expected,
                         positions.given.size()));
    }
    for (const double slope : positions.given) {
      if (!(slope >= 0.0 && slope <= 1e6)) {
        Refuse(path + ".positions.given", fmt::format("expected slopes >= 0, got {}", slope));
      }
    }
  }
}

}  // namespace

std::int64_t SlopedHeads(const Positions& positions, std::int64_t heads) {
  if (positions.kind == "alibi") return heads;
  if (positions.kind == "nape") {
    return std::llround(positions.share * static_cast<double>(heads));
  }
  return 0;
}

bool HasSlope(const AttentionConfig& config, std::int64_t heads, std::int64_t h) {
  return SlopedHeads(config.positions, heads) > h;
}

bool IsScaled(const AttentionConfig& config, std::int64_t heads, std::int64_t h) {
  if (config.length_scaling.kind == "none") return false;
  return config.length_scaling.heads == "all" || config.positions.kind != "nape" ||
         !HasSlope(config, heads, h);
}

bool LearnAlike(const DecoderConfig& a, const DecoderConfig& b) {
  for (std::int64_t layer = 0; layer < a.layers; ++layer) {
    for (std::int64_t h = 0; h < a.heads; ++h) {
      const AttentionConfig one = a.Head(layer, h);
      const AttentionConfig other = b.Head(layer, h);
      const auto learns_slope = [&](const AttentionConfig& head) {
        return head.positions.learn_slopes && HasSlope(head, a.heads, h);
      };
      const bool scaled = IsScaled(one, a.heads, h);
      if (scaled != IsScaled(other, a.heads, h) ||
          (scaled && one.length_scaling != other.length_scaling) ||
          one.learn_alpha != other.learn_alpha || learns_slope(one) != learns_slope(other) ||
          (one.sink == "learned") != (other.sink == "learned")) {
        return false;
      }
    }
  }
  return true;
}

AttentionConfig DecoderConfig::Head(std::int64_t layer, std::int64_t head) const {
  AttentionConfig result = attention;
  const auto concerns = [](const std::vector<std::int64_t>& list, std::int64_t index) {
    return list.empty() || std::find(list.begin(), list.end(), index) != list.end();
  };
  for (const AttentionOverride& change : overrides) {
    if (!concerns(change.layers, layer) || !concerns(change.heads, head)) continue;
    if (change.given.contains("map") && change.attention.map != result.map) {
      MapConfig other;
      other.alpha = result.alpha;
      static_cast<MapConfig&>(result) = other;
    }
    if (change.attention.scale_invariant == 0.0) {
      result.scale_invariant_alpha = result.scale_invariant_beta = std::nullopt;
    }
    AttentionConfig values = change.attention;  // Describe() takes what a reader may write to
    KeyMembers members;
    Describe(members, values);
    LayOver overlay(members, change.given);
    Describe(overlay, result);
    if (result.scale_invariant == 0.0) result.scale_invariant = std::nullopt;
  }
  return result;
}

void CheckDecoder(const DecoderConfig& config, const std::string& path) {
  if (config.vocabulary < 1) {
    Refuse(path + ".vocabulary",
           fmt::format("expected at least 1 token, got {}", config.vocabulary));
  }
  if (config.head_dim == 0 && config.width % config.heads != 0) {
    Refuse(path + ".head_dim", fmt::format("has to be given: width {} is no multiple of heads {}",
                                           config.width, config.heads));
  }
  if (config.HeadDim() < 1 || config.HeadDim() > 512) {
    if (config.head_dim != 0) {
      Refuse(path + ".head_dim", fmt::format("expected 1 to 512, got {}", config.head_dim));
    }
    Refuse(path + ".width", fmt::format("expected 1 to 512 numbers for each of {} heads (head_dim, "
                                        "unless given), got width {}",
                                        config.heads, config.width));
  }
  CheckHead(config, config.attention, path + ".attention");
  const bool sinusoids = config.attention.positions.kind == "sinusoidal";
  for (std::size_t i = 0; i < config.overrides.size(); ++i) {
    const AttentionOverride& change = config.overrides[i];
    const std::string key = fmt::format("{}.override.#{}", path, i + 1);
    const auto within = [&](const char* name, const std::vector<std::int64_t>& list,
                            std::int64_t count) {
      for (const std::int64_t index : list) {
        if (index >= 0 && index < count) continue;
        Refuse(key + "." + name, fmt::format("expected 0 to {}, got {}", count - 1, index));
      }
    };
    within("layers", change.layers, config.layers);
    within("heads", change.heads, config.heads);
    if (change.attention.positions.kind == "sinusoidal" && !sinusoids) {
      Refuse(key + ".positions.kind",
             "\"sinusoidal\" is added to the embeddings: give it as attention.positions");
    }
  }
  if (config.overrides.empty()) return;
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    for (std::int64_t head = 0; head < config.heads; ++head) {
      CheckHead(config, config.Head(layer, head),
                fmt::format("{}.override (layer {}, head {})", path, layer, head));
    }
  }
}

DecoderConfig WithDefaults(DecoderConfig config,
                           void (*check)(const DecoderConfig& config, const std::string& path),
                           const std::string& automatic_compute) {
  check(config, "model");
  config.head_dim = config.HeadDim();
  if (config.compute == "auto") config.compute = automatic_compute;
  return config;
}

Json ToJson(const DecoderConfig& config) {
  JsonWriter writer;
  DecoderConfig copy = config;  // Describe() takes what a reader may write to
  Describe(writer, copy);
  return writer.json;
}

DecoderConfig DecoderFromJson(const Json& json, const std::string& source) {
  if (!json.is_object()) throw UsageError(source + ": expected an object, got " + json.dump());
  TomlProblems problems(source);
  DecoderConfig config;
  const toml::table table = ToTable(json);
  TableReader reader(table, "", problems);
  Describe(reader, config);
  reader.Finish();
  problems.ThrowIfAny();
  CheckDecoder(config, source);
  return config;
}

std::vector<DecoderKey> DecoderKeys() {
  KeyLister lister;
  DecoderConfig config;
  Describe(lister, config);
  return lister.keys;
}

const std::vector<CatalogueEntry>& QueryScalings() {
  static const std::vector<CatalogueEntry> entries = {
      {"none", "1"},
      {"ssmax", "b ln n, b learned for each head"},
      {"scalar", "delta + b (ln n)^g, b and g learned for each head"},
      {"adaptive", "delta + beta (ln n)^gamma, beta and gamma from the query's own input"},
      {"table", "one learned number for each head and position"}};
  return entries;
}

const std::vector<CatalogueEntry>& PositionKinds() {
  static const std::vector<CatalogueEntry> entries = {
      {"nope", "none"},
      {"sinusoidal", "sines and cosines added to the embeddings"},
      {"rope", "rotations of queries and keys; all frequencies or the fastest"},
      {"alibi", "a slope for each head"},
      {"nape", "ALiBi for the first heads, nothing for the others"}};
  return entries;
}

}  // namespace tsallis::lab
