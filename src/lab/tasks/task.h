// A task, of whatever its samples are: sets (max_retrieval.h) or sequences (sequence.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lab/tasks/metric.h"

namespace tsallis::lab {

class Task {
 public:
  virtual ~Task() = default;

  virtual Scoring GetScoring() const { return Scoring::kExact; }
  // The first decides which checkpoint is best, and tables show it; a page has the others beside
  // it.
  virtual std::vector<Metric> Metrics() const { return {Metric()}; }
  Metric GetMetric() const { return Metrics().front(); }

  // UsageError unless the task exists at this length.
  virtual void CheckLength(std::int64_t length) const = 0;

  // Kinds of samples that are counted apart, too: names. None: all samples are of one kind.
  virtual std::vector<std::string> Groups() const { return {}; }
};

}  // namespace tsallis::lab
