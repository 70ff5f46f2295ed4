// The stack on which torch hands an operator its arguments and takes the results, and operators
// made of plain functions.
#pragma once

#include <torch/csrc/stable/stableivalue_conversions.h>

#include <array>
#include <cstdint>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>

#include "stable/tensor.h"

namespace tsallis::stable {

// Reads each argument once, from the first to the last: a handle on the stack belongs to its
// reader. All are read before anything is checked, so that an error leaks none.
class Stack {
 public:
  explicit Stack(StableIValue* values) : next_(values), results_(values) {}

  template <typename T>
  T Take() {
    if constexpr (std::is_same_v<T, Tensor>) {
      return Tensor(Take<AtenTensorHandle>());
    } else if constexpr (std::is_same_v<T, std::optional<Tensor>>) {
      const auto handle = Take<std::optional<AtenTensorHandle>>();
      return handle ? std::optional(Tensor(*handle)) : std::nullopt;
    } else {
      return torch::stable::detail::to<T>(*next_++);
    }
  }

  // Results, from the first to the last, when all arguments have been read.
  void Give(Tensor tensor) { Give(tensor.Release()); }
  template <typename T>
  void Give(T value) {
    *results_++ = torch::stable::detail::from(value);
  }

 private:
  StableIValue* next_;
  StableIValue* results_;
};

// An argument while the operator runs; settings.h has those that are read from a table.
template <typename T>
struct Argument {
  explicit Argument(Stack& stack) : value(stack.Take<T>()) {}
  T value;
};

namespace detail {

template <typename... Types>
struct List {};

template <typename Function, typename... Read>
auto Call(const Function& function, Stack&, List<>, Read&... read) {
  return function(read...);
}
template <typename Function, typename First, typename... Rest, typename... Read>
auto Call(const Function& function, Stack& stack, List<First, Rest...>, Read&... read) {
  Argument<std::decay_t<First>> argument(stack);
  return Call(function, stack, List<Rest...>(), read..., argument.value);
}

template <typename Result, typename... Arguments>
List<Arguments...> ArgumentsOf(Result (*)(Arguments...));

}  // namespace detail

using Operator = void (*)(StableIValue*, std::uint64_t, std::uint64_t);

// The operator of a function whose arguments are those of the schema, in their order, with the
// settings of a table as one. It returns nothing, a result, or a tuple or an array of them. A
// tensor that is empty becomes one without elements.
template <auto kFunction>
void Boxed(StableIValue* values, std::uint64_t, std::uint64_t) {
  using Arguments = decltype(detail::ArgumentsOf(kFunction));
  Stack stack(values);
  const auto give = [&](auto&&... results) {
    const auto one = [&](auto& result) {
      if constexpr (std::is_same_v<std::decay_t<decltype(result)>, Tensor>) {
        stack.Give(result.defined() ? std::move(result) : NoElements());
      } else {
        stack.Give(result);
      }
    };
    (one(results), ...);
  };
  using Result = decltype(detail::Call(kFunction, stack, Arguments()));
  if constexpr (std::is_void_v<Result>) {
    detail::Call(kFunction, stack, Arguments());
  } else {
    auto result = detail::Call(kFunction, stack, Arguments());
    if constexpr (requires { std::tuple_size<Result>::value; }) {
      std::apply(give, std::move(result));
    } else {
      give(result);
    }
  }
}

}  // namespace tsallis::stable
