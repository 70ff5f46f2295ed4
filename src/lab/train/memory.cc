#include "lab/train/memory.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "lab/base/errors.h"
#include "lab/config/experiment_kind.h"

namespace tsallis::lab {
namespace {

// "12.5 TB"
std::string Bytes(double bytes) {
  const char* units[] = {"B", "kB", "MB", "GB", "TB", "PB", "EB"};
  std::size_t unit = 0;
  while (bytes >= 1000.0 && unit + 1 < std::size(units)) {
    bytes /= 1000.0;
    ++unit;
  }
  return fmt::format("{:.3g} {}", bytes, units[unit]);
}

}  // namespace

double MemoryLimit() {
  double limit =
      static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
  // "max" where there is no limit: then nothing is read.
  double group = 0.0;
  if (std::ifstream("/sys/fs/cgroup/memory.max") >> group) limit = std::min(limit, group);
  return limit;
}

double LeastMemory(const TrainingJob& job) {
  const Recipe& recipe = *job.recipe;
  const auto samples = static_cast<double>(recipe.train.batch) /
                       static_cast<double>(recipe.train.accumulate * job.processes.Size());
  const double tokens = samples * static_cast<double>(recipe.task.train_length_min);
  return recipe.Kind().LeastMemory(recipe.model, tokens);
}

void CheckMemory(const TrainingJob& job, double limit) {
  if (job.recipe->train.device != "cpu") return;  // of which the limit is
  const double least = LeastMemory(job);
  if (least <= limit) return;
  throw UsageError(
      fmt::format("a training step of this size needs more than {}, but only {} are available: "
                  "lower {}, train.batch, or "
                  "raise train.accumulate",
                  Bytes(least), Bytes(limit), job.recipe->Kind().SizeKeys()));
}

}  // namespace tsallis::lab
