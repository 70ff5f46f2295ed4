// Runs a recipe: a queue of training jobs over methods and seeds, and evaluation.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lab/base/errors.h"
#include "lab/config/recipe.h"
#include "lab/progress/progress.h"

namespace tsallis::lab {

struct ReproduceOptions {
  std::string scale = "quick";
  int seeds = 0;                        // 0: as the scale says; at most kMostSeeds
  std::uint64_t first_seed = 1;         // seeds are first_seed, first_seed + 1, ...
  std::vector<std::string> methods;     // empty: as the scale says
  std::filesystem::path runs = "runs";  // jobs live in runs/<study>/<scale>/<method>/seed-<n>
  bool resume =
      false;  // go on with what is there; without it, an existing unfinished run is a UsageError
  bool finished_only = false;  // run nothing, report on the jobs that are finished
  // Sequences: lengths whose attention is drawn; empty: as MapLengths() says.
  std::vector<std::int64_t> map_lengths;
  // Runs every count-th of the study's jobs, from job `index` on (from 0); its results are those of
  // all jobs that are finished by then, by whichever shard. All rates of a method that are to be
  // chosen from are in one shard.
  struct Shard {
    std::int64_t index = 0, count = 1;
  };
  Shard shard;
  int workers = 0;  // cores at work: jobs at a time; 0: all of the machine
  ProgressOptions progress;
  std::string command;  // recorded in the results
};

struct Reproduced {
  // What the recipe says at the scale and the folders of the finished runs, for the report
  // (python/tsallis_report/derive.py).
  nlohmann::ordered_json study;
  std::vector<std::string> failures;  // jobs that failed, with the reason
  std::size_t unfinished = 0;         // jobs that are missing, failed ones included
};

// A recipe that is about to run, with its jobs listed: methods, seeds, shards and lengths of maps
// are there, and without `resume` no folder holds a run. Whoever runs several recipes plans them
// all first, so that such a mistake in the last does not cost the hours of the others. A missing
// corpus, or a run of other settings that is to be resumed, shows only when a job begins.
class Reproduction {
 public:
  // Throws UsageError.
  Reproduction(const Recipe& recipe, const ReproduceOptions& options);
  Reproduction(Reproduction&&) noexcept;
  ~Reproduction();

  const Recipe& GetRecipe() const;

  // Once. A job that fails (its loss is not finite, the disk is full) does not stop the others; it
  // is named in the failures. Throws UsageError, Interrupted (when `stop` becomes true),
  // or std::runtime_error if no job succeeds.
  Reproduced Run(const std::atomic<bool>& stop);

 private:
  struct Plan;
  std::unique_ptr<Plan> plan_;
};

}  // namespace tsallis::lab
