// Algorithms whose runs are written as text: CLRS-Text (Markeeva et al. 2024, "The CLRS-Text
// Algorithmic Reasoning Language Benchmark", arXiv 2406.04229), eight of its thirty. What a run
// reads, what it answers, and the states that it passes through have the form of the benchmark's
// own package, character by character; src/lab/tasks/testing/clrs_text.json holds examples of it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lab/base/random.h"

namespace tsallis::lab {

// The inputs of the algorithms; each reads some of them.
struct ClrsInputs {
  std::vector<double> key;     // numbers, of three decimals; start times of activities
  std::vector<double> finish;  // of activities
  double target = 0.0;         // of a search
  // Letters as numbers: the string, then the pattern, which begins at `pattern`.
  std::vector<std::int64_t> letters;
  std::int64_t pattern = 0;
  std::vector<std::vector<std::int64_t>> graph;  // adjacency, 0 and 1, symmetric
  std::int64_t source = 0;                       // the node where a search begins
};

struct ClrsRun {
  std::string inputs;
  std::string asked;
  std::string traced = {};  // what the states are; empty: what is asked
  // From before the first step to after the last.
  std::vector<std::string> states = {};
  std::string answer = {};  // empty: the last state
};

struct ClrsAlgorithm {
  const char* name;      // "insertion_sort"
  std::int64_t largest;  // the largest size of the benchmark's validation sets
  // Inputs of size n >= 4, as the benchmark draws them.
  ClrsInputs (*draw)(RandomStream& random, std::int64_t n);
  ClrsRun (*run)(const ClrsInputs& inputs);
};

// In the order of their names.
const std::vector<ClrsAlgorithm>& ClrsAlgorithms();

struct ClrsText {
  std::string question;  // ends with a line break
  std::string answer;    // without the empty line that ends an example in the benchmark
};

// `traced`: the question gives the first state, the answer begins with the states in between.
ClrsText WriteClrs(const ClrsAlgorithm& algorithm, const ClrsInputs& inputs, bool traced);

}  // namespace tsallis::lab
