// The settings of attention, one line each. What the operators' schemas and C++ signatures say,
// what autograd keeps for the backward pass and which tensors take part in it comes from this
// table.
//
// A setting has a name (that of the operators' argument), a kind and a member of AttentionOptions.
// Its default is the member's initial value. Tensors with gradients come first, in the order of the
// gradients.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "torch/operators.h"

namespace tsallis {

using OptionalTensor = std::optional<at::Tensor>;

// Settings that are no tensors, as autograd keeps them: as values that compiled autograd can
// compare, one list of each type.
struct KeptSettings {
  std::vector<double> numbers;
  std::vector<std::int64_t> integers;

  // A number, an integer, true or false, a name of an enumeration, or an optional or several of
  // them.
  template <typename T>
  void Put(const T& value) {
    if constexpr (requires { value.has_value(); }) {
      Put(value.has_value());
      if (value) Put(*value);
    } else if constexpr (requires { value.size(); }) {
      Put(value.size());
      for (const auto& one : value) Put(one);
    } else if constexpr (std::is_floating_point_v<T>) {
      numbers.push_back(value);
    } else {
      integers.push_back(static_cast<std::int64_t>(value));
    }
  }
};

// Gives them back in the order in which they were put.
struct SettingsReader {
  const KeptSettings& kept;
  std::size_t number = 0, integer = 0;

  template <typename T>
  void Get(T& value) {
    if constexpr (requires { value.has_value(); }) {
      if (kept.integers.at(integer++) != 0) Get(value.emplace());
    } else if constexpr (requires { value.size(); }) {
      value.resize(static_cast<std::size_t>(kept.integers.at(integer++)));
      for (auto& one : value) Get(one);
    } else if constexpr (std::is_floating_point_v<T>) {
      value = kept.numbers.at(number++);
    } else {
      value = static_cast<T>(kept.integers.at(integer++));
    }
  }
};

// The words of settings that are enumerations. Get* throw c10::ValueError that names the argument.
const char* Name(Alignment alignment);
const char* Name(Padding padding);
void FromName(std::string_view name, RowMap* map);
void FromName(std::string_view name, Alignment* alignment);
void FromName(std::string_view name, Padding* padding);

// Throws c10::ValueError unless the number is finite and > 0.
void CheckPositive(const char* argument, double number);

// ---- kinds: how a member of AttentionOptions stands in a schema and in a signature

struct PlainSetting {
  static constexpr bool kTensor = false, kGradient = false;
};

struct TensorSetting {
  using Argument = const OptionalTensor&;
  static constexpr bool kTensor = true, kGradient = false;
  static constexpr const char* kSchema = "Tensor?";
  static std::string Default(const OptionalTensor&) { return "None"; }
  static const OptionalTensor& Give(const OptionalTensor& member) { return member; }
  static void Take(const OptionalTensor& argument, OptionalTensor& member) { member = argument; }
};

// A tensor that autograd may ask a gradient for.
struct GradientSetting : TensorSetting {
  static constexpr bool kGradient = true;
};

// bool, std::int64_t or double.
template <typename T>
struct ScalarSetting : PlainSetting {
  using Argument = T;
  static constexpr const char* kSchema = std::is_same_v<T, bool>       ? "bool"
                                         : std::is_floating_point_v<T> ? "float"
                                                                       : "int";
  static std::string Default(T member) {
    if constexpr (std::is_same_v<T, bool>) return member ? "True" : "False";
    return std::to_string(member);
  }
  static T Give(T member) { return member; }
  static void Take(T argument, T& member) { member = argument; }
};

// None: the member, which may be optional itself, stays as it was.
struct OptionalNumberSetting : PlainSetting {
  using Argument = std::optional<double>;
  static constexpr const char* kSchema = "float?";
  static std::string Default(Argument) { return "None"; }
  static Argument Give(Argument member) { return member; }
  template <typename Member>
  static void Take(Argument argument, Member& member) {
    if (argument) member = *argument;
  }
};
// A number of AttentionTerms, which is 0 where None is given.
struct TermSetting : PlainSetting {
  using Argument = std::optional<double>;
  static constexpr const char* kSchema = "float?";
  static std::string Default(double) { return "None"; }
  static Argument Give(double member) { return member == 0.0 ? Argument() : Argument(member); }
  static void Check(const char* name, Argument argument) {
    if (argument) CheckPositive(name, *argument);
  }
  static void Take(Argument argument, double& member) { member = argument.value_or(0.0); }
};
struct OptionalNumbersSetting : PlainSetting {
  using Argument = std::optional<at::ArrayRef<double>>;
  static constexpr const char* kSchema = "float[]?";
  static std::string Default(const std::vector<double>&) { return "None"; }
  static Argument Give(const std::vector<double>& member) { return at::ArrayRef<double>(member); }
  static void Take(const Argument& argument, std::vector<double>& member) {
    if (argument) member = argument->vec();
  }
};

// An enumeration, by its name.
struct NameSetting : PlainSetting {
  using Argument = std::string_view;
  static constexpr const char* kSchema = "str";
  static std::string Default(auto member) { return std::string("\"") + Name(member) + '"'; }
  static Argument Give(auto member) { return Name(member); }
  static void Take(Argument argument, auto& member) { FromName(argument, &member); }
};

// ---- the table

template <typename KindType, typename Member>
struct AttentionSetting {
  using Kind = KindType;
  const char* name;
  Member member;  // of AttentionOptions, const or not
};
template <typename Kind, typename Member>
constexpr AttentionSetting<Kind, Member> Setting(const char* name, Member member) {
  return {name, member};
}

#define TSALLIS_MEMBER(path) \
  [](auto& options) -> auto& { return options.path; }
inline constexpr auto kAttentionSettings = std::tuple{
    Setting<GradientSetting>("alpha_heads", TSALLIS_MEMBER(alpha_heads)),
    Setting<GradientSetting>("length_scale", TSALLIS_MEMBER(length_scale)),
    Setting<GradientSetting>("alibi_slopes", TSALLIS_MEMBER(alibi_slopes)),
    Setting<GradientSetting>("bias", TSALLIS_MEMBER(bias)),
    Setting<GradientSetting>("sink", TSALLIS_MEMBER(sink)),
    Setting<TensorSetting>("mask", TSALLIS_MEMBER(mask)),
    Setting<TensorSetting>("block_mask", TSALLIS_MEMBER(block_mask)),
    Setting<TensorSetting>("lengths", TSALLIS_MEMBER(lengths)),
    Setting<TensorSetting>("query_lengths", TSALLIS_MEMBER(query_lengths)),
    Setting<TensorSetting>("cu_seqlens_q", TSALLIS_MEMBER(cu_seqlens_q)),
    Setting<TensorSetting>("cu_seqlens_k", TSALLIS_MEMBER(cu_seqlens_k)),
    Setting<NameSetting>("map", TSALLIS_MEMBER(map)),
    Setting<ScalarSetting<double>>("alpha", TSALLIS_MEMBER(alpha)),
    Setting<OptionalNumbersSetting>("coefficients", TSALLIS_MEMBER(adaptive.coefficients)),
    Setting<OptionalNumberSetting>("threshold", TSALLIS_MEMBER(adaptive.threshold)),
    Setting<ScalarSetting<std::int64_t>>("top_k", TSALLIS_MEMBER(top_k.k)),
    Setting<ScalarSetting<double>>("top_k_fraction", TSALLIS_MEMBER(top_k.fraction)),
    Setting<OptionalNumberSetting>("sigmoid_bias", TSALLIS_MEMBER(sigmoid_bias)),
    Setting<TermSetting>("scale", TSALLIS_MEMBER(terms.scale)),
    Setting<TermSetting>("softcap", TSALLIS_MEMBER(terms.softcap)),
    Setting<TermSetting>("scale_invariant", TSALLIS_MEMBER(terms.scale_invariant)),
    Setting<TermSetting>("scale_invariant_alpha", TSALLIS_MEMBER(terms.scale_invariant_alpha)),
    Setting<TermSetting>("scale_invariant_beta", TSALLIS_MEMBER(terms.scale_invariant_beta)),
    Setting<ScalarSetting<bool>>("causal", TSALLIS_MEMBER(causal)),
    Setting<NameSetting>("alignment", TSALLIS_MEMBER(alignment)),
    Setting<ScalarSetting<std::int64_t>>("left", TSALLIS_MEMBER(left)),
    Setting<ScalarSetting<std::int64_t>>("right", TSALLIS_MEMBER(right)),
    Setting<ScalarSetting<std::int64_t>>("block_q", TSALLIS_MEMBER(block_q)),
    Setting<ScalarSetting<std::int64_t>>("block_k", TSALLIS_MEMBER(block_k)),
    Setting<NameSetting>("padding", TSALLIS_MEMBER(padding)),
    Setting<ScalarSetting<std::int64_t>>("saved_budget", TSALLIS_MEMBER(saved_budget)),
};
#undef TSALLIS_MEMBER

// ---- what follows from it

// Calls visit(setting) for every one.
template <typename Visit>
constexpr void ForEachSetting(const Visit& visit) {
  std::apply([&](const auto&... setting) { (visit(setting), ...); }, kAttentionSettings);
}

// Calls visit(name, tensor) for every setting that is a tensor, there or not; `options` may be
// const.
template <typename Options, typename Visit>
void ForEachTensor(Options& options, const Visit& visit) {
  ForEachSetting([&](const auto& setting) {
    using Kind = typename std::decay_t<decltype(setting)>::Kind;
    if constexpr (Kind::kTensor) visit(setting.name, setting.member(options));
  });
}

// Calls visit(index, tensor) for every setting that can have a gradient, there or not.
template <typename Visit>
void ForEachGradientTensor(const AttentionOptions& options, const Visit& visit) {
  std::size_t index = 0;
  ForEachSetting([&](const auto& setting) {
    using Kind = typename std::decay_t<decltype(setting)>::Kind;
    if constexpr (Kind::kGradient) visit(index++, setting.member(options));
  });
}

// Calls body(tensors...) with those tensors.
template <typename Body>
decltype(auto) WithGradientTensors(const AttentionOptions& options, const Body& body) {
  const auto only = [&](const auto& setting) {
    using Kind = typename std::decay_t<decltype(setting)>::Kind;
    if constexpr (Kind::kGradient) {
      return std::forward_as_tuple(setting.member(options));
    } else {
      return std::tuple<>();
    }
  };
  return std::apply(
      [&](const auto&... setting) { return std::apply(body, std::tuple_cat(only(setting)...)); },
      kAttentionSettings);
}

inline constexpr std::size_t kGradientSettings = std::apply(
    [](const auto&... setting) {
      return (std::size_t{std::decay_t<decltype(setting)>::Kind::kGradient} + ...);
    },
    kAttentionSettings);

// "Tensor? alpha_heads=None, ...": how the operators' schemas end.
std::string AttentionSettingsSchema();
// "d_alpha_heads", ...: gradients of the settings, in their order.
std::array<std::string, kGradientSettings> AttentionGradientNames();

// ---- operators

template <typename... Types>
struct TypeList {};
using SettingArguments = decltype(std::apply(
    [](const auto&... setting) {
      return TypeList<typename std::decay_t<decltype(setting)>::Kind::Argument...>();
    },
    kAttentionSettings));

// An operator from a function that takes the settings as AttentionOptions, first. Call is what
// torch calls: the other arguments come first there, and the settings one by one behind them.
template <auto kFunction, typename Type = decltype(kFunction), typename Settings = SettingArguments>
struct AttentionOperator;
template <auto kFunction, typename Result, typename... First, typename... Settings>
struct AttentionOperator<kFunction, Result (*)(const AttentionOptions&, First...),
                         TypeList<Settings...>> {
  static Result Call(First... first, Settings... settings) {
    AttentionOptions options;
    const auto arguments = std::forward_as_tuple(settings...);
    [&]<std::size_t... kAt>(std::index_sequence<kAt...>) {
      const auto take = [&](const auto& setting, const auto& argument) {
        using Kind = typename std::decay_t<decltype(setting)>::Kind;
        if constexpr (requires { Kind::Check(setting.name, argument); }) {
          Kind::Check(setting.name, argument);
        }
        Kind::Take(argument, setting.member(options));
      };
      (take(std::get<kAt>(kAttentionSettings), std::get<kAt>(arguments)), ...);
    }
    (std::index_sequence_for<Settings...>());
    return kFunction(options, first...);
  }
};

// The signature of an operator whose arguments before the settings are `First`.
template <typename Settings, typename Result, typename... First>
struct AttentionSignatureOf;
template <typename Result, typename... First, typename... Settings>
struct AttentionSignatureOf<TypeList<Settings...>, Result, First...> {
  using Type = Result(First..., Settings...);
};
template <typename Result, typename... First>
using AttentionSignature = typename AttentionSignatureOf<SettingArguments, Result, First...>::Type;

// Calls an operator's handle with `first` and the settings behind it.
template <typename Handle, typename... First>
auto CallWithSettings(const Handle& handle, const AttentionOptions& options,
                      const First&... first) {
  return std::apply(
      [&](const auto&... setting) {
        return handle.call(first...,
                           std::decay_t<decltype(setting)>::Kind::Give(setting.member(options))...);
      },
      kAttentionSettings);
}

}  // namespace tsallis
