// The settings of attention and of the row maps, one line each. The schema of every operator and
// the reading of its arguments come from these tables.
//
// A setting has a name (the operators' argument), a kind and a member of the arguments
// (arguments.h, rows.h). Its default is the member's initial value. Enumerations are integers here:
// Python has their names.
#pragma once

#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "stable/stack.h"
#include "tsallis/error.h"

namespace tsallis::stable {

// The first mistake among the arguments: kept until all of them have been read.
using Mistake = std::optional<InvalidArgument>;

// ---- kinds: how a member stands in a schema and on the stack

struct TensorSetting {
  static constexpr const char* kSchema = "Tensor?";
  static std::string Default(const Tensor&) { return "None"; }
  static void Read(Stack& stack, const char*, Tensor& member, Mistake&) {
    if (auto given = stack.Take<std::optional<Tensor>>()) member = std::move(*given);
  }
};

// bool, std::int64_t or double.
template <typename T>
struct ScalarSetting {
  static constexpr const char* kSchema = std::is_same_v<T, bool>       ? "bool"
                                         : std::is_floating_point_v<T> ? "float"
                                                                       : "int";
  static std::string Default(T member) {
    if constexpr (std::is_same_v<T, bool>) return member ? "True" : "False";
    return std::to_string(member);
  }
  static void Read(Stack& stack, const char*, T& member, Mistake&) { member = stack.Take<T>(); }
};

// None: the member, which may be optional itself, stays as it was.
struct OptionalNumberSetting {
  static constexpr const char* kSchema = "float?";
  static std::string Default(const auto&) { return "None"; }
  static void Read(Stack& stack, const char*, auto& member, Mistake&) {
    if (const auto given = stack.Take<std::optional<double>>()) member = *given;
  }
};

// A number of AttentionTerms: > 0, and 0 where None is given.
struct TermSetting {
  static constexpr const char* kSchema = "float?";
  static std::string Default(double) { return "None"; }
  static void Read(Stack& stack, const char* name, double& member, Mistake& mistake) {
    const auto given = stack.Take<std::optional<double>>();
    member = given.value_or(0.0);
    if (given && !mistake && !(std::isfinite(*given) && *given > 0.0)) {
      mistake.emplace(name, "a finite number > 0 or None", Text(*given));
    }
  }
};

struct OptionalNumbersSetting {
  static constexpr const char* kSchema = "float[]?";
  static std::string Default(const std::vector<double>&) { return "None"; }
  static void Read(Stack& stack, const char*, std::vector<double>& member, Mistake&) {
    if (auto given = stack.Take<std::optional<std::vector<double>>>()) member = std::move(*given);
  }
};

// An enumeration with the values 0 to kMost.
template <typename Enum, int kMost>
struct EnumSetting {
  static constexpr const char* kSchema = "int";
  static std::string Default(Enum member) { return std::to_string(static_cast<int>(member)); }
  static void Read(Stack& stack, const char* name, Enum& member, Mistake& mistake) {
    const std::int64_t value = stack.Take<std::int64_t>();
    if (value >= 0 && value <= kMost) {
      member = static_cast<Enum>(value);
    } else if (!mistake) {
      mistake.emplace(name, "an integer from 0 to " + std::to_string(kMost), std::to_string(value));
    }
  }
};

// ---- the tables

template <typename KindType, typename Member>
struct SettingOf {
  using Kind = KindType;
  const char* name;
  Member member;  // of the arguments, const or not
};
template <typename Kind, typename Member>
constexpr SettingOf<Kind, Member> Setting(const char* name, Member member) {
  return {name, member};
}

enum class Padding : std::uint8_t { kRight, kLeft };
using RowMapSetting = EnumSetting<RowMap, static_cast<int>(RowMap::kStickBreaking)>;

#define TSALLIS_MEMBER(path) \
  [](auto& arguments) -> auto& { return arguments.path; }
// Of every operator with a map. A map ignores the numbers of others.
inline constexpr auto kMapSettings = std::tuple{
    Setting<RowMapSetting>("map", TSALLIS_MEMBER(params.map)),
    Setting<ScalarSetting<double>>("alpha", TSALLIS_MEMBER(params.alpha)),
    Setting<OptionalNumbersSetting>("coefficients", TSALLIS_MEMBER(params.adaptive.coefficients)),
    Setting<OptionalNumberSetting>("threshold", TSALLIS_MEMBER(params.adaptive.threshold)),
    Setting<ScalarSetting<std::int64_t>>("top_k", TSALLIS_MEMBER(params.top_k.k)),
    Setting<ScalarSetting<double>>("top_k_fraction", TSALLIS_MEMBER(params.top_k.fraction)),
    Setting<OptionalNumberSetting>("sigmoid_bias", TSALLIS_MEMBER(params.sigmoid_bias)),
};
inline constexpr auto kRowSettings = std::tuple_cat(
    kMapSettings,
    std::tuple{
        Setting<ScalarSetting<std::int64_t>>("dim", TSALLIS_MEMBER(dim)),
        Setting<ScalarSetting<double>>("temperature", TSALLIS_MEMBER(params.temperature)),
        Setting<ScalarSetting<double>>("budget", TSALLIS_MEMBER(params.budget)),
    });
inline constexpr auto kLossSettings = std::tuple{
    Setting<RowMapSetting>("map", TSALLIS_MEMBER(params.map)),
    Setting<ScalarSetting<double>>("alpha", TSALLIS_MEMBER(params.alpha)),
    Setting<ScalarSetting<double>>("temperature", TSALLIS_MEMBER(params.temperature)),
    Setting<ScalarSetting<std::int64_t>>("ignore_index", TSALLIS_MEMBER(ignore_index)),
};
// Tensors with gradients come first, in the order of the gradients.
inline constexpr auto kAttentionSettings = std::tuple_cat(
    std::tuple{
        Setting<TensorSetting>("alpha_heads", TSALLIS_MEMBER(alpha_heads)),
        Setting<TensorSetting>("length_scale", TSALLIS_MEMBER(length_scale)),
        Setting<TensorSetting>("alibi_slopes", TSALLIS_MEMBER(alibi_slopes)),
        Setting<TensorSetting>("bias", TSALLIS_MEMBER(bias)),
        Setting<TensorSetting>("sink", TSALLIS_MEMBER(sink)),
        Setting<TensorSetting>("mask", TSALLIS_MEMBER(mask)),
        Setting<TensorSetting>("block_mask", TSALLIS_MEMBER(block_mask)),
        Setting<TensorSetting>("lengths", TSALLIS_MEMBER(lengths)),
        Setting<TensorSetting>("query_lengths", TSALLIS_MEMBER(query_lengths)),
        Setting<TensorSetting>("cu_seqlens_q", TSALLIS_MEMBER(cu_seqlens_q)),
        Setting<TensorSetting>("cu_seqlens_k", TSALLIS_MEMBER(cu_seqlens_k)),
    },
    kMapSettings,
    std::tuple{
        Setting<TermSetting>("scale", TSALLIS_MEMBER(params.terms.scale)),
        Setting<TermSetting>("softcap", TSALLIS_MEMBER(params.terms.softcap)),
        Setting<TermSetting>("scale_invariant", TSALLIS_MEMBER(params.terms.scale_invariant)),
        Setting<TermSetting>("scale_invariant_alpha",
                             TSALLIS_MEMBER(params.terms.scale_invariant_alpha)),
        Setting<TermSetting>("scale_invariant_beta",
                             TSALLIS_MEMBER(params.terms.scale_invariant_beta)),
        Setting<ScalarSetting<bool>>("causal", TSALLIS_MEMBER(params.mask.causal)),
        Setting<EnumSetting<Alignment, 1>>("alignment", TSALLIS_MEMBER(params.mask.alignment)),
        Setting<ScalarSetting<std::int64_t>>("left", TSALLIS_MEMBER(params.mask.left)),
        Setting<ScalarSetting<std::int64_t>>("right", TSALLIS_MEMBER(params.mask.right)),
        Setting<ScalarSetting<std::int64_t>>("block_q", TSALLIS_MEMBER(params.mask.block_q)),
        Setting<ScalarSetting<std::int64_t>>("block_k", TSALLIS_MEMBER(params.mask.block_k)),
        Setting<EnumSetting<Padding, 1>>("padding", TSALLIS_MEMBER(padding)),
        Setting<ScalarSetting<std::int64_t>>("saved_budget", TSALLIS_MEMBER(saved_budget)),
    });
#undef TSALLIS_MEMBER

// ---- what follows from them

// "int map=1, float alpha=1.500000, ...": how the schemas end.
template <typename Table, typename Arguments>
std::string Schema(const Table& table, const Arguments& defaults) {
  std::string schema;
  const auto add = [&](const auto& setting) {
    using Kind = typename std::decay_t<decltype(setting)>::Kind;
    schema += (schema.empty() ? "" : ", ") + std::string(Kind::kSchema) + ' ' + setting.name + '=' +
              Kind::Default(setting.member(defaults));
  };
  std::apply([&](const auto&... setting) { (add(setting), ...); }, table);
  return schema;
}

// Reads every setting of the table into the arguments, which keep the first mistake.
template <typename Table, typename Arguments>
void ReadSettings(const Table& table, Stack& stack, Arguments& arguments) {
  const auto read = [&](const auto& setting) {
    using Kind = typename std::decay_t<decltype(setting)>::Kind;
    Kind::Read(stack, setting.name, setting.member(arguments), arguments.mistake);
  };
  std::apply([&](const auto&... setting) { (read(setting), ...); }, table);
}

}  // namespace tsallis::stable
