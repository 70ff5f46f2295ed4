// T12, CLRS-Text (Markeeva et al. 2024; Velickovic et al. 2024, section 4.2): the runs of
// algorithms as text, byte by byte. `length` is the size of the problem: numbers, letters or nodes.
// The model reads the question and writes the answer; a sample is right if all of the answer is.
//
//   minimum:                                                            question
//   key: [0.048 0.289 0.72 0.021], initial_trace: 0
//   trace | min:
//   0, 0 | 3                                                            answer
//
// A sample draws its algorithm among those of the task that the benchmark asks at that size.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "lab/tasks/clrs_algorithms.h"
#include "lab/tasks/sequence_tasks.h"

namespace tsallis::lab {
namespace {

constexpr std::int64_t kBytes = 128;  // ASCII
constexpr std::int64_t kSmallest = 4;

std::string WordOfByte(std::int64_t byte) {
  if (byte == '\n') return "\\n";
  if (byte == ' ') return "_";
  return byte > ' ' && byte < kBytes - 1 ? std::string(1, static_cast<char>(byte))
                                         : fmt::format("\\x{:02x}", byte);
}

}  // namespace

TaskPointer MakeClrsText(TableReader& table) {
  std::vector<std::string> names;
  for (const ClrsAlgorithm& algorithm : ClrsAlgorithms()) names.emplace_back(algorithm.name);
  const std::vector<std::string> known = names;
  bool traces = true;
  table.Optional("algorithms", names);
  table.Optional("traces", traces);
  if (names.empty()) table.Problem("algorithms", "expected at least one algorithm, got none");
  std::vector<const ClrsAlgorithm*> algorithms;
  std::int64_t largest = kSmallest;
  for (const std::string& name : names) {
    const auto found = std::find(known.begin(), known.end(), name);
    if (found == known.end()) {
      table.Problem("algorithms", fmt::format("unknown algorithm \"{}\": expected some of {}", name,
                                              fmt::join(known, ", ")));
      continue;
    }
    const ClrsAlgorithm* algorithm = &ClrsAlgorithms()[found - known.begin()];
    if (std::find(algorithms.begin(), algorithms.end(), algorithm) != algorithms.end()) {
      table.Problem("algorithms", "\"" + name + "\" is there twice");
      continue;
    }
    algorithms.push_back(algorithm);
    largest = std::max(largest, algorithm->largest);
  }
  const auto fill = [=](RandomStream& random, std::int64_t length) -> Text {
    std::vector<const ClrsAlgorithm*> asked;
    for (const ClrsAlgorithm* algorithm : algorithms) {
      if (length <= algorithm->largest) asked.push_back(algorithm);
    }
    const ClrsAlgorithm& algorithm = *asked[random.Below(std::ssize(asked))];
    const ClrsText text = WriteClrs(algorithm, algorithm.draw(random, length), traces);
    return {{text.question.begin(), text.question.end()}, {text.answer.begin(), text.answer.end()}};
  };
  // The question begins with the name.
  const auto group_of = [=](const std::int64_t* tokens, std::int64_t count) {
    const std::string name(tokens + 1, std::find(tokens + 1, tokens + count, ':'));
    return static_cast<std::size_t>(std::find(names.begin(), names.end(), name) - names.begin());
  };
  return std::make_unique<GeneratedTask>(Generator{.framing = Framing::kUnseparated,
                                                   .data_tokens = kBytes,
                                                   .shortest = kSmallest,
                                                   .longest = largest,
                                                   .fill = fill,
                                                   .word = WordOfByte,
                                                   .groups = names,
                                                   .group_of = group_of});
}

}  // namespace tsallis::lab
