// How answers are counted: what validation, tables and pages of a study show.
#pragma once

#include <cstdint>
#include <string>

namespace tsallis::lab {

enum class Scoring : std::uint8_t {
  kExact,   // a sample is right if all of its answers are
  kTokens,  // every answer counts by itself
  kLoss,    // the mean cross-entropy of the answers
  kBleu,    // BLEU of all texts that are written (lab/text/translation_scores.h)
};

struct Metric {
  std::string name = "accuracy";
  std::string unit = "%";  // "nats a byte"
  bool higher_is_better = true;
  int digits = 1;        // behind the point, for people
  double notable = 5.0;  // a report's finding names differences from here on
};

// Sums over what was asked.
struct Answers {
  std::int64_t asked = 0;
  std::int64_t hits = 0;
  double loss = 0.0;  // nats
  // The score itself, for metrics that are no sum; Add() leaves it as it is.
  double score = 0.0;

  void Add(const Answers& more) {
    asked += more.asked;
    hits += more.hits;
    loss += more.loss;
  }
  bool operator==(const Answers&) const = default;

  double Value(Scoring scoring) const {
    if (scoring == Scoring::kBleu) return score;
    if (asked == 0) return 0.0;
    const double sum = scoring == Scoring::kLoss ? loss : 100.0 * static_cast<double>(hits);
    return sum / static_cast<double>(asked);
  }
};

inline Metric MetricOf(Scoring scoring, const std::string& answer) {
  if (scoring == Scoring::kLoss) return {"loss", "nats a " + answer, false, 3, 0.02};
  if (scoring == Scoring::kBleu) return {"BLEU", "points", true, 1, 1.0};
  return {"accuracy", "%", true, 1, 5.0};
}

}  // namespace tsallis::lab
