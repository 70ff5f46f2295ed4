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

// ---- inputs

// Uniform in [0, 1), cut to three decimals.
double Fraction(RandomStream& random) { return static_cast<double>(random.Below(1000)) / 1e3; }

// Uniform in [-1, 1), cut towards 0: of two thousandths around 0 one is -0.0.
double Signed(RandomStream& random) {
  const std::int64_t k = random.Below(2000) - 1000;
  return k >= 0 ? static_cast<double>(k) / 1e3 : -static_cast<double>(-k - 1) / 1e3;
}

template <double (*kDraw)(RandomStream&)>
ClrsInputs DrawKeys(RandomStream& random, std::int64_t n) {
  ClrsInputs inputs;
  for (std::int64_t i = 0; i < n; ++i) inputs.key.push_back(kDraw(random));
  return inputs;
}

ClrsInputs DrawSearch(RandomStream& random, std::int64_t n) {
  ClrsInputs inputs = DrawKeys<Fraction>(random, n);
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
  std::copy_n(inputs.letters.begin() + inputs.pattern, length, inputs.letters.begin() + hidden);
  return inputs;
}

// Two nodes are neighbours if both of two coins say so; a node may be its own neighbour.
ClrsInputs DrawGraph(RandomStream& random, std::int64_t n) {
  ClrsInputs inputs;
  inputs.graph.assign(n, Indices(n));
  for (Indices& row : inputs.graph) {
    for (std::int64_t& coin : row) coin = random.Below(2);
  }
  for (std::int64_t i = 0; i < n; ++i) {
    for (std::int64_t j = 0; j < i; ++j) {
      inputs.graph[i][j] = inputs.graph[j][i] = inputs.graph[i][j] * inputs.graph[j][i];
    }
  }
  inputs.source = random.Below(n);
  return inputs;
}

// ---- runs

std::string Keys(const ClrsInputs& inputs) { return "key: " + List(inputs.key); }

ClrsRun ActivitySelector(const ClrsInputs& inputs) {
  const Numbers& start = inputs.key;
  const Numbers& finish = inputs.finish;
  Indices order(start.size());
  std::iota(order.begin(), order.end(), 0);
  // The first of equal ends comes first; the benchmark leaves their order to its library.
  std::stable_sort(order.begin(), order.end(),
                   [&](std::int64_t a, std::int64_t b) { return finish[a] < finish[b]; });
  Indices selected(start.size());
  ClrsRun run{.inputs = fmt::format("s: {}, f: {}", List(start), List(finish)),
              .asked = "selected",
              .states = {List(selected)}};
  double end = 0.0;  // of the last that was selected
  for (const std::int64_t next : order) {
    if (start[next] >= end) {
      selected[next] = 1;
      end = finish[next];
    }
    run.states.push_back(List(selected));
  }
  return run;
}

ClrsRun Bfs(const ClrsInputs& inputs) {
  const auto n = std::ssize(inputs.graph);
  std::vector<std::string> rows;
  for (const Indices& row : inputs.graph) rows.push_back(List(row));
  ClrsRun run{.inputs = fmt::format("s: {}, A: [{}]", inputs.source, fmt::join(rows, ", ")),
              .asked = "pi"};
  Indices parent(n);
  std::iota(parent.begin(), parent.end(), 0);
  std::vector<bool> reached(n);
  reached[inputs.source] = true;
  for (bool grew = true; grew;) {
    run.states.push_back(List(parent));
    const std::vector<bool> before = reached;
    for (std::int64_t i = 0; i < n; ++i) {
      for (std::int64_t j = 0; before[i] && j < n; ++j) {
        if (inputs.graph[i][j] == 0) continue;
        if (parent[j] == j && j != inputs.source) parent[j] = i;
        reached[j] = true;
      }
    }
    grew = reached != before;
  }
  return run;
}

ClrsRun BinarySearch(const ClrsInputs& inputs) {
  std::int64_t low = 0, high = std::ssize(inputs.key) - 1;
  ClrsRun run{.inputs = fmt::format("{}, target: {}", Keys(inputs), Text(inputs.target)),
              .asked = "return",
              .traced = "(low, high)",
              .states = {Pair(low, high)}};
  while (low < high) {
    const std::int64_t middle = (low + high) / 2;
    if (inputs.target <= inputs.key[middle]) {
      high = middle;
    } else {
      low = middle + 1;
    }
    run.states.push_back(Pair(low, high));
  }
  run.answer = std::to_string(high);
  return run;
}

// The run of a sort: the keys in the order that they have.
ClrsRun Sorting(const ClrsInputs& inputs) {
  return {.inputs = Keys(inputs), .asked = "pred", .states = {List(inputs.key)}};
}

ClrsRun BubbleSort(const ClrsInputs& inputs) {
  Numbers key = inputs.key;
  ClrsRun run = Sorting(inputs);
  for (std::size_t i = 0; i + 1 < key.size(); ++i) {
    for (std::size_t j = key.size() - 1; j > i; --j) {
      if (key[j] < key[j - 1]) std::swap(key[j], key[j - 1]);
      run.states.push_back(List(key));
    }
  }
  return run;
}

// Kadane's algorithm for the subarray of the largest sum (Bentley 1984).
ClrsRun MaximumSubarray(const ClrsInputs& inputs) {
  const Numbers& key = inputs.key;
  std::int64_t low = 0, high = 0, begin = 0;
  double best = key[0];
  double sum = key[0];
  ClrsRun run{.inputs = Keys(inputs),
              .asked = "start, end",
              .traced = "(best_low, best_high)",
              .states = {Pair(low, high)}};
  for (std::int64_t j = 1; j < std::ssize(key); ++j) {
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
    run.states.push_back(Pair(low, high));
  }
  run.answer = fmt::format("{}, {}", low, high);
  return run;
}

ClrsRun InsertionSort(const ClrsInputs& inputs) {
  Numbers key = inputs.key;
  ClrsRun run = Sorting(inputs);
  for (auto at = key.begin() + 1; at != key.end(); ++at) {
    std::rotate(std::upper_bound(key.begin(), at, *at), at, at + 1);
    run.states.push_back(List(key));
  }
  return run;
}

ClrsRun Minimum(const ClrsInputs& inputs) {
  std::size_t least = 0;
  ClrsRun run{.inputs = Keys(inputs), .asked = "min", .states = {"0"}};
  for (std::size_t i = 1; i < inputs.key.size(); ++i) {
    if (inputs.key[i] < inputs.key[least]) least = i;
    run.states.push_back(std::to_string(least));
  }
  return run;
}

// A state is the place where the pattern lies; it is written again for every letter that fits.
ClrsRun NaiveStringMatcher(const ClrsInputs& inputs) {
  const Indices& letters = inputs.letters;
  const auto pattern = letters.begin() + inputs.pattern;
  const std::int64_t length = letters.end() - pattern;
  Indices part(letters.size());
  std::fill(part.begin() + inputs.pattern, part.end(), 1);
  ClrsRun run{.inputs = fmt::format("string: {}, key: {}", List(part), List(letters)),
              .asked = "match",
              .traced = "s"};
  // It ends, because the string holds the pattern.
  for (std::int64_t place = 0, fit = 0; fit < length; ++place) {
    fit = std::mismatch(pattern, letters.end(), letters.begin() + place).first - pattern;
    const std::int64_t compared = std::min(fit + 1, length);
    run.states.insert(run.states.end(), compared, std::to_string(place));
  }
  return run;
}

}  // namespace

const std::vector<ClrsAlgorithm>& ClrsAlgorithms() {
  static const std::vector<ClrsAlgorithm> algorithms = {
      {"activity_selector", 40, DrawActivities, ActivitySelector},
      {"bfs", 41, DrawGraph, Bfs},
      {"binary_search", 64, DrawSearch, BinarySearch},
      {"bubble_sort", 11, DrawKeys<Fraction>, BubbleSort},
      {"find_maximum_subarray_kadane", 64, DrawKeys<Signed>, MaximumSubarray},
      {"insertion_sort", 25, DrawKeys<Fraction>, InsertionSort},
      {"minimum", 64, DrawKeys<Fraction>, Minimum},
      {"naive_string_matcher", 64, DrawStrings, NaiveStringMatcher},
  };
  return algorithms;
}

ClrsText WriteClrs(const ClrsAlgorithm& algorithm, const ClrsInputs& inputs, bool traced) {
  const ClrsRun run = algorithm.run(inputs);
  if (!traced) {
    return {fmt::format("{}:\n{}\n{}:\n", algorithm.name, run.inputs, run.asked),
            run.answer.empty() ? run.states.back() : run.answer};
  }
  std::vector<std::string> between;  // none where a run ends as it begins
  for (std::size_t i = 1; i + 1 < run.states.size(); ++i) between.push_back(run.states[i]);
  return {fmt::format("{}:\n{}, initial_trace: {}\ntrace | {}:\n", algorithm.name, run.inputs,
                      run.states.front(), run.traced.empty() ? run.asked : run.traced),
          fmt::format("{} | {}", fmt::join(between, ", "), run.states.back())};
}

}  // namespace tsallis::lab
