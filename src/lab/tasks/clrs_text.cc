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

class ClrsTask : public GeneratedTask {
 public:
  ClrsTask(const std::vector<const ClrsAlgorithm*>& algorithms, bool traced)
      : GeneratedTask(Framing::kUnseparated, kBytes,
                      {.min = kSmallest, .max = LargestOf(algorithms)}),
        algorithms_(algorithms),
        traced_(traced) {}

  std::vector<std::string> Groups() const override {
    std::vector<std::string> names;
    for (const ClrsAlgorithm* algorithm : algorithms_) names.emplace_back(algorithm->name);
    return names;
  }

  // The question begins with the name.
  std::size_t GroupOf(const std::int64_t* tokens, std::int64_t count) const override {
    std::string name;
    for (std::int64_t i = 1; i < count && tokens[i] != ':'; ++i) {
      name += static_cast<char>(tokens[i]);
    }
    const auto found =
        std::find_if(algorithms_.begin(), algorithms_.end(),
                     [&](const ClrsAlgorithm* algorithm) { return name == algorithm->name; });
    return static_cast<std::size_t>(found - algorithms_.begin());
  }

 protected:
  Text Fill(RandomStream& random, std::int64_t length) const override {
    std::vector<const ClrsAlgorithm*> asked;
    for (const ClrsAlgorithm* algorithm : algorithms_) {
      if (length <= algorithm->largest) asked.push_back(algorithm);
    }
    const ClrsAlgorithm& algorithm =
        *asked[static_cast<std::size_t>(random.Below(static_cast<std::int64_t>(asked.size())))];
    const ClrsText text = algorithm.write(algorithm.draw(random, length), traced_);
    return {{text.question.begin(), text.question.end()}, {text.answer.begin(), text.answer.end()}};
  }

  std::string DataWord(std::int64_t token) const override {
    if (token == '\n') return "\\n";
    if (token == ' ') return "_";
    return token > ' ' && token < kBytes - 1 ? std::string(1, static_cast<char>(token))
                                             : fmt::format("\\x{:02x}", token);
  }

 private:
  static std::int64_t LargestOf(const std::vector<const ClrsAlgorithm*>& algorithms) {
    std::int64_t largest = kSmallest;
    for (const ClrsAlgorithm* algorithm : algorithms) {
      largest = std::max(largest, algorithm->largest);
    }
    return largest;
  }

  std::vector<const ClrsAlgorithm*> algorithms_;
  bool traced_;
};

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
  for (const std::string& name : names) {
    const auto found = std::find(known.begin(), known.end(), name);
    if (found == known.end()) {
      table.Problem("algorithms", fmt::format("unknown algorithm \"{}\": expected some of {}", name,
                                              fmt::join(known, ", ")));
      continue;
    }
    const ClrsAlgorithm* algorithm =
        &ClrsAlgorithms()[static_cast<std::size_t>(found - known.begin())];
    if (std::find(algorithms.begin(), algorithms.end(), algorithm) != algorithms.end()) {
      table.Problem("algorithms", "\"" + name + "\" is there twice");
      continue;
    }
    algorithms.push_back(algorithm);
  }
  if (algorithms.empty()) algorithms.push_back(&ClrsAlgorithms().front());
  return std::make_unique<ClrsTask>(algorithms, traces);
}

}  // namespace tsallis::lab
