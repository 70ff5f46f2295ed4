#include "lab/tasks/clrs_algorithms.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace tsallis::lab {
namespace {

using Numbers = std::vector<double>;
using Indices = std::vector<std::int64_t>;

// ---- text

// Writes a float of three decimals as Python does: 0.5, 0.0, -0.0.
std::string Text(double value) {
  std::string text = fmt::format("{}", value);
  return text.find('.') == std::string::npos ? text + ".0" : text;
}

std::string List(const Numbers& values) {
  std::vector<std::string> texts;
  for (const double value : values) texts.push_back(Text(value));
  return fmt::format("[{}]", fmt::join(texts, " "));
}

std::string List(const Indices& values) { return fmt::format("[{}]", fmt::join(values, " ")); }

std::string Pair(std::int64_t a, std::int64_t b) { return fmt::format("({}, {})", a, b); }

// A run: states from before the first step to after the last. The answer repeats the last one, so a
// trace leaves it out.
struct Run {
  std::string inputs;
  std::string asked, answer;    // without a trace
  std::string traced, outcome;  // with one: what the states are, and the answer in their form
  std::vector<std::string> states;
};

ClrsText Write(const char* name, const Run& run, bool with_trace) {
  if (!with_trace) return {fmt::format("{}:\n{}\n{}:\n", name, run.inputs, run.asked), run.answer};
  std::vector<std::string> between;  // none where a run ends as it begins
  for (std::size_t i = 1; i + 1 < run.states.size(); ++i) between.push_back(run.states[i]);
  return {fmt::format("{}:\n{}, initial_trace: {}\ntrace | {}:\n", name, run.inputs,
                      run.states.front(), run.traced),
          fmt::format("{} | {}", fmt::join(between, ", "), run.outcome)};
}

// ---- inputs

// Uniform in [0, 1), cut to three decimals.
double Fraction(RandomStream& random) { return static_cast<double>(random.Below(1000)) / 1e3; }

// Uniform in [-1, 1), cut towards 0: of two thousandths around 0 one is -0.0.
double Signed(RandomStream& random) {
  const std::int64_t k = random.Below(2000) - 1000;
  return k >= 0 ? static_cast<double>(k) / 1e3 : -static_cast<double>(-k - 1) / 1e3;
}

ClrsInputs DrawNumbers(RandomStream& random, std::int64_t n) {
  ClrsInputs inputs;
  for (std::int64_t i = 0; i < n; ++i) inputs.key.push_back(Fraction(random));
  return inputs;
}

ClrsInputs DrawSigned(RandomStream& random, std::int64_t n) {
  ClrsInputs inputs;
  for (std::int64_t i = 0; i < n; ++i) inputs.key.push_back(Signed(random));
  return inputs;
}

ClrsInputs DrawSearch(RandomStream& random, std::int64_t n) {
  ClrsInputs inputs = DrawNumbers(random, n);
  std::sort(inputs.key.begin(), inputs.key.end());
  inputs.target = Fraction(random);
  return inputs;
}

ClrsInputs DrawActivities(RandomStream& random, std::int64_t n) {
  ClrsInputs inputs;
  for (std::int64_t i = 0; i < n; ++i) {
    const double a = Fraction(random);
    const double b = Fraction(random);
    inputs.key.push_back(std::min(a, b));
    inputs.finish.push_back(std::max(a, b));
  }
  return inputs;
}

// A pattern of a fifth of the size, hidden in a string of four letters.
ClrsInputs DrawStrings(RandomStream& random, std::int64_t n) {
  constexpr std::int64_t kLetters = 4;
  const std::int64_t length = std::max<std::int64_t>(1, n / 5);
  ClrsInputs inputs;
  inputs.pattern = n - length;
  for (std::int64_t i = 0; i < n; ++i) inputs.letters.push_back(random.Below(kLetters));
  const std::int64_t hidden = random.Below(inputs.pattern - length);
  for (std::int64_t i = 0; i < length; ++i) {
    inputs.letters[static_cast<std::size_t>(hidden + i)] =
        inputs.letters[static_cast<std::size_t>(inputs.pattern + i)];
  }
  return inputs;
}

// Two nodes are neighbours if both of two coins say so; a node may be its own neighbour.
ClrsInputs DrawGraph(RandomStream& random, std::int64_t n) {
  ClrsInputs inputs;
  const auto size = static_cast<std::size_t>(n);
  std::vector<Indices> coins(size, Indices(size));
  for (Indices& row : coins) {
    for (std::int64_t& coin : row) coin = random.Below(2);
  }
  inputs.graph = coins;
  for (std::size_t i = 0; i < size; ++i) {
    for (std::size_t j = 0; j < size; ++j) inputs.graph[i][j] = coins[i][j] * coins[j][i];
  }
  inputs.source = random.Below(n);
  return inputs;
}

// ---- runs

std::string Keys(const ClrsInputs& inputs) { return "key: " + List(inputs.key); }

// The run of a sort: the keys in the order that they have.
Run Sorting(const ClrsInputs& inputs) {
  return {Keys(inputs), "pred", "", "pred", "", {List(inputs.key)}};
}

ClrsText Sorted(const char* name, Run& run, bool traced) {
  run.answer = run.outcome = run.states.back();
  return Write(name, run, traced);
}

ClrsText ActivitySelector(const ClrsInputs& inputs, bool traced) {
  const Numbers& start = inputs.key;
  const Numbers& finish = inputs.finish;
  Indices order(start.size());
  std::iota(order.begin(), order.end(), 0);
  // The first of equal ends comes first; the benchmark leaves their order to its library.
  std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
    return finish[static_cast<std::size_t>(a)] < finish[static_cast<std::size_t>(b)];
  });
  Indices selected(start.size());
  Run run{fmt::format("s: {}, f: {}", List(start), List(finish)),
          "selected",
          "",
          "selected",
          "",
          {List(selected)}};
  auto last = static_cast<std::size_t>(order[0]);
  for (std::size_t m = 0; m < order.size(); ++m) {
    const auto next = static_cast<std::size_t>(order[m]);
    if (m == 0 || start[next] >= finish[last]) {
      selected[next] = 1;
      last = next;
    }
    run.states.push_back(List(selected));
  }
  run.answer = run.outcome = run.states.back();
  return Write("activity_selector", run, traced);
}

ClrsText Bfs(const ClrsInputs& inputs, bool traced) {
  const std::size_t n = inputs.graph.size();
  const auto source = static_cast<std::size_t>(inputs.source);
  std::vector<std::string> rows;
  for (const Indices& row : inputs.graph) rows.push_back(List(row));
  Run run{fmt::format("s: {}, A: [{}]", source, fmt::join(rows, ", ")), "pi", "", "pi", "", {}};
  Indices parent(n);
  std::iota(parent.begin(), parent.end(), 0);
  std::vector<bool> reached(n);
  reached[source] = true;
  for (bool grew = true; grew;) {
    run.states.push_back(List(parent));
    const std::vector<bool> before = reached;
    for (std::size_t i = 0; i < n; ++i) {
      for (std::size_t j = 0; before[i] && j < n; ++j) {
        if (inputs.graph[i][j] == 0) continue;
        if (parent[j] == static_cast<std::int64_t>(j) && j != source) {
          parent[j] = static_cast<std::int64_t>(i);
        }
        reached[j] = true;
      }
    }
    grew = reached != before;
  }
  run.answer = run.outcome = List(parent);
  return Write("bfs", run, traced);
}

ClrsText BinarySearch(const ClrsInputs& inputs, bool traced) {
  std::int64_t low = 0;
  std::int64_t high = static_cast<std::int64_t>(inputs.key.size()) - 1;
  Run run{fmt::format("{}, target: {}", Keys(inputs), Text(inputs.target)),
          "return",
          "",
          "(low, high)",
          "",
          {Pair(low, high)}};
  while (low < high) {
    const std::int64_t middle = (low + high) / 2;
    if (inputs.target <= inputs.key[static_cast<std::size_t>(middle)]) {
      high = middle;
    } else {
      low = middle + 1;
    }
    run.states.push_back(Pair(low, high));
  }
  run.answer = std::to_string(high);
  run.outcome = run.states.back();
  return Write("binary_search", run, traced);
}

ClrsText BubbleSort(const ClrsInputs& inputs, bool traced) {
  Numbers key = inputs.key;
  Run run = Sorting(inputs);
  for (std::size_t i = 0; i + 1 < key.size(); ++i) {
    for (std::size_t j = key.size() - 1; j > i; --j) {
      if (key[j] < key[j - 1]) std::swap(key[j], key[j - 1]);
      run.states.push_back(List(key));
    }
  }
  return Sorted("bubble_sort", run, traced);
}

// Kadane's algorithm for the subarray of the largest sum (Bentley 1984).
ClrsText MaximumSubarray(const ClrsInputs& inputs, bool traced) {
  const Numbers& key = inputs.key;
  std::size_t low = 0, high = 0, begin = 0;
  double best = key[0];
  double sum = key[0];
  const auto state = [&] {
    return Pair(static_cast<std::int64_t>(low), static_cast<std::int64_t>(high));
  };
  Run run{Keys(inputs), "start, end", "", "(best_low, best_high)", "", {state()}};
  for (std::size_t j = 1; j < key.size(); ++j) {
    if (sum + key[j] >= key[j]) {
      sum += key[j];
    } else {
      begin = j;
      sum = key[j];
    }
    if (sum > best) {
      low = begin;
      high = j;
      best = sum;
    }
    run.states.push_back(state());
  }
  run.answer = fmt::format("{}, {}", low, high);
  run.outcome = state();
  return Write("find_maximum_subarray_kadane", run, traced);
}

ClrsText InsertionSort(const ClrsInputs& inputs, bool traced) {
  Numbers key = inputs.key;
  Run run = Sorting(inputs);
  for (std::size_t j = 1; j < key.size(); ++j) {
    const auto end = key.begin() + static_cast<std::ptrdiff_t>(j);
    std::rotate(std::upper_bound(key.begin(), end, *end), end, end + 1);
    run.states.push_back(List(key));
  }
  return Sorted("insertion_sort", run, traced);
}

ClrsText Minimum(const ClrsInputs& inputs, bool traced) {
  std::size_t least = 0;
  Run run{Keys(inputs), "min", "", "min", "", {"0"}};
  for (std::size_t i = 1; i < inputs.key.size(); ++i) {
    if (inputs.key[i] < inputs.key[least]) least = i;
    run.states.push_back(std::to_string(least));
  }
  run.answer = run.outcome = std::to_string(least);
  return Write("minimum", run, traced);
}

// A state is the place where the pattern lies; it is written again for every letter that fits.
ClrsText NaiveStringMatcher(const ClrsInputs& inputs, bool traced) {
  const Indices& letters = inputs.letters;
  const auto size = static_cast<std::int64_t>(letters.size());
  const std::int64_t length = size - inputs.pattern;
  Indices part(letters.size());
  std::fill(part.begin() + inputs.pattern, part.end(), 1);
  Run run{fmt::format("string: {}, key: {}", List(part), List(letters)), "match", "", "s", "", {}};
  std::int64_t match = inputs.pattern;  // the pattern's own place: it is nowhere in the string
  for (std::int64_t place = 0; match == inputs.pattern && place <= inputs.pattern - length;
       ++place) {
    for (std::int64_t j = 0;; ++j) {
      run.states.push_back(std::to_string(place));
      if (letters[static_cast<std::size_t>(place + j)] !=
          letters[static_cast<std::size_t>(inputs.pattern + j)]) {
        break;
      }
      if (j == length - 1) {
        match = place;
        break;
      }
    }
  }
  run.answer = run.outcome = std::to_string(match);
  return Write("naive_string_matcher", run, traced);
}

}  // namespace

const std::vector<ClrsAlgorithm>& ClrsAlgorithms() {
  static const std::vector<ClrsAlgorithm> algorithms = {
      {"activity_selector", 40, DrawActivities, ActivitySelector},
      {"bfs", 41, DrawGraph, Bfs},
      {"binary_search", 64, DrawSearch, BinarySearch},
      {"bubble_sort", 11, DrawNumbers, BubbleSort},
      {"find_maximum_subarray_kadane", 64, DrawSigned, MaximumSubarray},
      {"insertion_sort", 25, DrawNumbers, InsertionSort},
      {"minimum", 64, DrawNumbers, Minimum},
      {"naive_string_matcher", 64, DrawStrings, NaiveStringMatcher},
  };
  return algorithms;
}

}  // namespace tsallis::lab
