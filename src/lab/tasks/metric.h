// What an evaluation counts, and the metrics that are made of it: what validation, tables and pages
// of a study show.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace tsallis::lab {

enum class Scoring : std::uint8_t {
  kExact,    // a sample is right if all of its answers are
  kTokens,   // every answer counts by itself
  kLoss,     // the mean cross-entropy of the answers
  kWritten,  // a model writes texts, and all of them together are compared with references
};

// What an evaluation at one length found: numbers and arrays of numbers by name, as its file has
// them (lab/eval/scores.h). JSON has null for what is no number.
using Score = nlohmann::ordered_json;

// NaN for null. std::runtime_error if the score has no such number.
double NumberIn(const Score& score, const std::string& name);

struct Metric {
  std::string name = "accuracy";
  std::string unit = "%";  // "nats a byte"
  bool higher_is_better = true;
  int digits = 1;        // behind the point, for people
  double notable = 5.0;  // a report's finding names differences from here on
  // The value is `factor` times this number of a score, divided by that of `count`, so that parts
  // of the samples add up. Without a count the number is the value, and has no such parts.
  std::string sum = "hits", count = "asked";
  double factor = 100.0;

  bool AddsUp() const { return !count.empty(); }
  // Of what is counted; 0 of nothing.
  double Value(double the_sum, double the_count) const {
    return the_count == 0.0 ? 0.0 : factor * the_sum / the_count;
  }
  double Value(const Score& score) const;
};

// Mean cross-entropy in nats; `answer`: what is asked, "byte".
Metric LossMetric(const std::string& answer, const std::string& count = "asked");

}  // namespace tsallis::lab
