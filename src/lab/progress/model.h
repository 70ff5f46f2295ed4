// The model of the progress display, without clock, thread or terminal: time is passed in, text
// comes out.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "lab/progress/progress.h"

namespace tsallis::lab {

// "45s", "3m 20s", "2h 05m", "1d 03h".
std::string FormatDuration(double seconds);

class ProgressModel {
 public:
  ProgressModel(std::vector<JobStatus> jobs, int workers);

  // Returns whether the job's state changed. `now`: seconds since the start, as everywhere below.
  bool Update(std::size_t job, const JobStatus& status, double now);

  // Time until the queue is empty, from measured step rates; nothing while too little was measured.
  std::optional<double> SecondsRemaining(double now) const;

  // "3/48 jobs done, 2 running, 12m 30s left".
  std::string Summary(double now) const;
  // "asentmax-3 seed 1: step 4000/10000, 512 steps/s, loss 0.1234, accuracy 98.1 %".
  std::string Line(std::size_t job) const;
  // Running and failed jobs as rows and the summary, at most `height` lines of at most `width`
  // columns.
  std::vector<std::string> Table(double now, int width, int height, bool color) const;

  std::vector<std::size_t> Running() const;

 private:
  struct Job {
    JobStatus status;
    // Rates are measured between the first and the last update in training: steps done before
    // belong to another run.
    std::optional<double> train_start;
    double train_seconds = 0.0;
    std::int64_t base_step = 0;
    std::optional<double> eval_start;
    double eval_seconds = 0.0;

    std::optional<double> Rate() const;
  };

  std::string Row(const Job& job, std::size_t name_width, int width, bool color) const;
  std::size_t Count(JobStatus::State state) const;

  std::vector<Job> jobs_;
  int workers_;
};

}  // namespace tsallis::lab
