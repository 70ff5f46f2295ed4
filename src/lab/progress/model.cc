#include "lab/progress/model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace tsallis::lab {

namespace {

using State = JobStatus::State;

// Below this a rate says more about start-up than about the work.
constexpr double kMeasuredSeconds = 2.0;
constexpr int kBarWidth = 24;
constexpr const char* kRed = "\x1b[31m";
constexpr const char* kCyan = "\x1b[36m";
constexpr const char* kReset = "\x1b[0m";

bool IsContinuation(char c) { return (static_cast<unsigned char>(c) & 0xC0U) == 0x80U; }

// Columns of a text whose characters are all one column wide, as names, numbers and the bar are.
std::size_t Columns(const std::string& text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return !IsContinuation(c); }));
}

// The first `columns` characters: a line that wraps would break the redraw in place.
std::string Truncate(const std::string& text, std::size_t columns) {
  std::size_t seen = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (!IsContinuation(text[i]) && seen++ == columns) return text.substr(0, i);
  }
  return text;
}

// Cells filled and empty; a thin line where a heavier one is still to come.
std::pair<std::string, std::string> Bar(double fraction, int width) {
  const int filled = std::clamp(static_cast<int>(std::floor(fraction * width)), 0, width);
  std::string done;
  std::string rest;
  for (int i = 0; i < width; ++i) (i < filled ? done : rest) += i < filled ? "━" : "─";
  return {done, rest};
}

const char* Describe(State state) {
  switch (state) {
    case State::kQueued: return "queued";
    case State::kTraining: return "training";
    case State::kEvaluating: return "evaluating";
    case State::kDone: return "done";
    case State::kFailed: return "failed";
    case State::kInterrupted: return "interrupted";
  }
  return "";
}

double Fraction(const JobStatus& status) {
  if (status.steps <= 0) return status.state == State::kDone ? 1.0 : 0.0;
  return static_cast<double>(status.step) / static_cast<double>(status.steps);
}

}  // namespace

std::string FormatDuration(double seconds) {
  const auto whole = static_cast<std::int64_t>(std::llround(std::max(0.0, seconds)));
  if (whole < 60) return fmt::format("{}s", whole);
  if (whole < 3600) return fmt::format("{}m {:02}s", whole / 60, whole % 60);
  if (whole < 86400) return fmt::format("{}h {:02}m", whole / 3600, whole / 60 % 60);
  return fmt::format("{}d {:02}h", whole / 86400, whole / 3600 % 24);
}

std::optional<double> ProgressModel::Job::Rate() const {
  const std::int64_t done = status.step - base_step;
  if (train_seconds < kMeasuredSeconds || done <= 0) return std::nullopt;
  return static_cast<double>(done) / train_seconds;
}

ProgressModel::ProgressModel(std::vector<JobStatus> jobs, int workers)
    : workers_(std::max(1, workers)) {
  jobs_.reserve(jobs.size());
  for (JobStatus& status : jobs) jobs_.emplace_back().status = std::move(status);
}

bool ProgressModel::Update(std::size_t index, const JobStatus& status, double now) {
  Job& job = jobs_.at(index);
  const bool changed = job.status.state != status.state;
  // The step in which training ends arrives with the next state; it still belongs to the training.
  if (job.train_start && job.status.state == State::kTraining) {
    job.train_seconds = now - *job.train_start;
  }
  if (status.state == State::kTraining && !job.train_start) {
    job.train_start = now;
    job.base_step = status.step;
  }
  if (status.state == State::kEvaluating && !job.eval_start) job.eval_start = now;
  if (job.status.state == State::kEvaluating && job.eval_start) {
    job.eval_seconds = now - *job.eval_start;
  }
  job.status = status;
  return changed;
}

std::optional<double> ProgressModel::SecondsRemaining(double now) const {
  // Methods differ in speed; a job that has not begun is expected to be as fast as the mean of what
  // was measured.
  double train_seconds = 0.0;
  double train_steps = 0.0;
  double eval_seconds = 0.0;
  int evaluated = 0;
  for (const Job& job : jobs_) {
    if (job.Rate()) {
      train_seconds += job.train_seconds;
      train_steps += static_cast<double>(job.status.step - job.base_step);
    }
    if (job.status.state == State::kDone && job.eval_start) {
      eval_seconds += job.eval_seconds;
      ++evaluated;
    }
  }
  const double eval_mean = evaluated > 0 ? eval_seconds / evaluated : 0.0;

  double sum = 0.0;
  double longest = 0.0;
  for (const Job& job : jobs_) {
    const State state = job.status.state;
    double remaining = 0.0;
    if (state == State::kQueued || state == State::kTraining) {
      const auto steps = static_cast<double>(std::max<std::int64_t>(
          0, job.status.steps - std::max(job.status.step, job.status.first_step)));
      if (steps > 0.0 && train_steps <= 0.0) return std::nullopt;
      const double mean_rate = train_steps > 0.0 ? train_steps / train_seconds : 1.0;
      remaining = steps / job.Rate().value_or(mean_rate) + eval_mean;
    } else if (state == State::kEvaluating) {
      remaining = std::max(0.0, eval_mean - (now - job.eval_start.value_or(now)));
    }
    sum += remaining;
    longest = std::max(longest, remaining);
  }
  // No schedule beats these two bounds, and a queue of many jobs comes near them.
  return std::max(longest, sum / workers_);
}

std::size_t ProgressModel::Count(State state) const {
  return static_cast<std::size_t>(std::count_if(
      jobs_.begin(), jobs_.end(), [&](const Job& job) { return job.status.state == state; }));
}

std::string ProgressModel::Summary(double now) const {
  const std::size_t running = Running().size();
  std::string text = fmt::format("{}/{} jobs done", Count(State::kDone), jobs_.size());
  if (running > 0) text += fmt::format(", {} running", running);
  if (const auto failed = Count(State::kFailed); failed > 0) {
    text += fmt::format(", {} failed", failed);
  }
  if (const auto stopped = Count(State::kInterrupted); stopped > 0) {
    text += fmt::format(", {} interrupted", stopped);
  }
  text += fmt::format(", {} elapsed", FormatDuration(now));
  if (running + Count(State::kQueued) > 0) {
    const std::optional<double> remaining = SecondsRemaining(now);
    text +=
        remaining ? fmt::format(", {} left", FormatDuration(*remaining)) : ", estimating time left";
  }
  return text;
}

std::string ProgressModel::Line(std::size_t index) const {
  const Job& job = jobs_.at(index);
  const JobStatus& status = job.status;
  std::string text = status.name + ": ";
  if (status.state == State::kTraining && !status.learns) {
    text += fmt::format("{:.0f} %", 100.0 * Fraction(status));
  } else if (status.state == State::kTraining && status.step > status.first_step) {
    text += fmt::format("step {}/{}", status.step, status.steps);
    if (const auto rate = job.Rate()) text += fmt::format(", {:.0f} steps/s", *rate);
    text += fmt::format(", loss {:.4f}, accuracy {:.1f} %", status.loss, status.accuracy);
  } else {
    text += Describe(status.state);
    if (status.state == State::kTraining) text += fmt::format(", {} steps", status.steps);
    if (status.state == State::kInterrupted && status.learns)
      text += fmt::format(" at step {}", status.step);
  }
  if (!status.note.empty()) text += " (" + status.note + ")";
  return text;
}

std::vector<std::size_t> ProgressModel::Running() const {
  std::vector<std::size_t> running;
  for (std::size_t i = 0; i < jobs_.size(); ++i) {
    const State state = jobs_[i].status.state;
    if (state == State::kTraining || state == State::kEvaluating) running.push_back(i);
  }
  return running;
}

std::string ProgressModel::Row(const Job& job, std::size_t name_width, int width,
                               bool color) const {
  const JobStatus& status = job.status;
  const auto columns = static_cast<std::size_t>(std::max(1, width));
  const std::string name =
      status.name + std::string(name_width - std::min(name_width, Columns(status.name)), ' ');
  if (status.state == State::kFailed) {
    // Only the first line of an error: the whole of it is reported at the end.
    const std::string note = status.note.substr(0, status.note.find('\n'));
    const std::string row = Truncate(name + "  failed: " + note, columns);
    return color ? kRed + row + kReset : row;
  }
  std::string rest;
  if (status.state == State::kEvaluating) {
    rest = "evaluating";
  } else if (!status.learns) {
    rest = fmt::format("{:>3.0f} %", 100.0 * Fraction(status));
  } else {
    const std::string steps = std::to_string(status.steps);
    rest = fmt::format("{:>{}}/{}", status.step, steps.size(), steps);
    const auto rate = job.Rate();
    rest += rate ? fmt::format(" {:>5.0f}/s", *rate) : "        ";
    rest += fmt::format("  loss {:.4f}  acc {:>5.1f} %", status.loss, status.accuracy);
    if (rate) {
      const double remaining = static_cast<double>(status.steps - status.step) / *rate;
      rest += "  " + FormatDuration(remaining);
    }
  }
  // The bar gives way first: everything else is a number.
  const int room = width - static_cast<int>(Columns(name) + Columns(rest)) - 4;
  const auto [done, todo] = Bar(Fraction(status), std::clamp(room, 0, kBarWidth));
  if (done.empty() && todo.empty()) return Truncate(name + "  " + rest, columns);
  const std::string bar = color ? kCyan + done + kReset + todo : done + todo;
  return name + "  " + bar + "  " + rest;  // fits: the bar took only what was left
}

std::vector<std::string> ProgressModel::Table(double now, int width, int height, bool color) const {
  std::vector<std::size_t> shown;
  for (std::size_t i = 0; i < jobs_.size(); ++i) {
    if (jobs_[i].status.state == State::kFailed) shown.push_back(i);
  }
  const std::vector<std::size_t> running = Running();
  shown.insert(shown.begin(), running.begin(), running.end());

  std::vector<std::string> lines;
  std::size_t room =
      static_cast<std::size_t>(std::max(1, height)) - 1;  // the summary keeps its own
  const bool cut = shown.size() > room;
  if (cut && room > 0) --room;
  const std::size_t hidden = shown.size() - std::min(shown.size(), room);
  shown.resize(std::min(shown.size(), room));
  std::size_t name_width = 0;
  for (const std::size_t i : shown) {
    name_width = std::max(name_width, Columns(jobs_[i].status.name));
  }
  lines.reserve(lines.size() + shown.size() + 2);
  for (const std::size_t i : shown) lines.push_back(Row(jobs_[i], name_width, width, color));
  const auto columns = static_cast<std::size_t>(std::max(1, width));
  if (cut && height > 1) lines.push_back(Truncate(fmt::format("... and {} more", hidden), columns));
  lines.push_back(Truncate(Summary(now), columns));
  return lines;
}

}  // namespace tsallis::lab
