#include "lab/progress/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "lab/progress/model.h"

namespace tsallis::lab {

namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kRedraw = std::chrono::milliseconds(250);
constexpr auto kPlainReport = std::chrono::seconds(30);

void Write(const std::string& text) {
  std::fputs(text.c_str(), stderr);
  std::fflush(stderr);
}

}  // namespace

struct Progress::Impl {
  Impl(std::vector<JobStatus> jobs, const ProgressOptions& given)
      : options(given), model(std::move(jobs), given.workers) {}

  double Now() const { return std::chrono::duration<double>(Clock::now() - start).count(); }

  // Goes back to the first line of the last drawing and writes over it. The cursor stays visible:
  // whoever kills the program gets their terminal back as it was.
  void Redraw() {
    winsize size{};
    int width = 80;
    int height = 24;
    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 && size.ws_row > 0) {
      width = size.ws_col;
      height = size.ws_row;
    }
    std::string text = drawn > 0 ? "\x1b[" + std::to_string(drawn) + "A\r" : "";
    // One line and one column less than there are: the cursor rests below, and nothing wraps.
    const std::vector<std::string> lines =
        model.Table(Now(), std::max(1, width - 1), std::max(1, height - 1), options.color);
    for (const std::string& line : lines) text += line + "\x1b[K\n";
    text += "\x1b[J";
    drawn = lines.size();
    Write(text);
  }

  void Report() {
    for (const std::size_t job : model.Running()) Write(model.Line(job) + "\n");
    Write(model.Summary(Now()) + "\n");
  }

  void Run() {
    std::unique_lock lock(mutex);
    while (!stopping) {
      if (options.terminal) Redraw();
      const bool stopped = options.terminal
                               ? wake.wait_for(lock, kRedraw, [&] { return stopping; })
                               : wake.wait_for(lock, kPlainReport, [&] { return stopping; });
      if (!stopped && !options.terminal) Report();
    }
    if (options.terminal) {
      Redraw();
    } else {
      Write(model.Summary(Now()) + "\n");
    }
  }

  const ProgressOptions options;
  const Clock::time_point start = Clock::now();
  std::mutex mutex;  // guards everything below
  ProgressModel model;
  std::size_t drawn = 0;  // lines of the last drawing
  bool stopping = false;
  std::condition_variable wake;
  std::thread thread;
};

Progress::Progress(std::vector<JobStatus> jobs, const ProgressOptions& options)
    : impl_(std::make_unique<Impl>(std::move(jobs), options)) {
  if (!options.quiet) impl_->thread = std::thread([this] { impl_->Run(); });
}

Progress::~Progress() {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->stopping = true;
  }
  impl_->wake.notify_all();
  if (impl_->thread.joinable()) impl_->thread.join();
}

void Progress::Update(std::size_t job, const JobStatus& status) {
  const std::lock_guard lock(impl_->mutex);
  const bool changed = impl_->model.Update(job, status, impl_->Now());
  if (changed && !impl_->options.quiet && !impl_->options.terminal) {
    std::string line = impl_->model.Line(job);
    if (status.state == JobStatus::State::kDone) line += "; " + impl_->model.Summary(impl_->Now());
    Write(line + "\n");
  }
}

}  // namespace tsallis::lab
