// Live progress of a queue of jobs: a table that redraws itself on a terminal, plain lines
// elsewhere.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace tsallis::lab {

struct JobStatus {
  enum class State : std::uint8_t { kQueued, kTraining, kEvaluating, kDone, kFailed, kInterrupted };
  std::string name;  // "asentmax-3 seed 1"
  State state = State::kQueued;
  std::int64_t step = 0;  // training steps done, of `steps`
  std::int64_t steps = 0;
  std::int64_t first_step =
      0;                  // where this run resumed, so that the rate counts only its own steps
  double loss = 0.0;      // running mean
  double accuracy = 0.0;  // running mean on training batches, %
  bool learns = true;     // whether there are a loss and an accuracy to show; else a percentage
  std::string note;       // "resumed at 40000", an error
};

struct ProgressOptions {
  bool quiet = false;     // draw nothing
  bool terminal = false;  // standard error is a terminal
  bool color = false;
  int workers = 1;  // for the estimate of the time left
};

// Thread-safe; draws on standard error from a thread of its own about four times a second (a
// terminal) or a line for each job's state change and every 30 s (no terminal).
class Progress {
 public:
  Progress(std::vector<JobStatus> jobs, const ProgressOptions& options);
  ~Progress();  // draws the last state and stops
  void Update(std::size_t job, const JobStatus& status);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tsallis::lab
