#include "lab/progress/model.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace tsallis::lab {
namespace {

using State = JobStatus::State;

JobStatus Job(const std::string& name, State state, std::int64_t step, std::int64_t steps) {
  JobStatus status;
  status.name = name;
  status.state = state;
  status.step = step;
  status.steps = steps;
  return status;
}

std::vector<JobStatus> Queue(int jobs, std::int64_t steps) {
  std::vector<JobStatus> queue;
  for (int i = 0; i < jobs; ++i) {
    queue.push_back(Job("job " + std::to_string(i), State::kQueued, 0, steps));
  }
  return queue;
}

// Columns of a line: characters, without colours.
std::size_t Columns(const std::string& line) {
  std::size_t columns = 0;
  for (std::size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '\x1b') {
      i = line.find('m', i);
    } else if ((static_cast<unsigned char>(line[i]) & 0xC0U) != 0x80U) {
      ++columns;
    }
  }
  return columns;
}

TEST(ProgressModel, Durations) {
  EXPECT_EQ(FormatDuration(0.2), "0s");
  EXPECT_EQ(FormatDuration(59.6), "1m 00s");
  EXPECT_EQ(FormatDuration(3725), "1h 02m");
  EXPECT_EQ(FormatDuration(90000), "1d 01h");
}

TEST(ProgressModel, WhatDoesNotLearnShowsAPercentage) {
  JobStatus status = Job("collapse", State::kTraining, 25, 100);
  status.learns = false;
  ProgressModel model({status}, 1);
  EXPECT_EQ(model.Line(0), "collapse: 25 %");
  model.Update(0, status, 1.0);
  const std::string row = model.Table(1.0, 100, 10, false).front();
  EXPECT_NE(row.find("25 %"), std::string::npos);
  EXPECT_EQ(row.find("loss"), std::string::npos);
  status.state = State::kInterrupted;
  model.Update(0, status, 2.0);
  EXPECT_EQ(model.Line(0), "collapse: interrupted");
}

TEST(ProgressModel, TimeLeftComesFromMeasuredRates) {
  ProgressModel model(Queue(4, 1000), 2);
  EXPECT_FALSE(model.SecondsRemaining(0));
  model.Update(0, Job("job 0", State::kTraining, 0, 1000), 1);
  model.Update(1, Job("job 1", State::kTraining, 0, 1000), 1);
  model.Update(0, Job("job 0", State::kTraining, 10, 1000), 1.1);
  EXPECT_FALSE(model.SecondsRemaining(1.1));  // too early to say
  EXPECT_NE(model.Summary(1.1).find("estimating"), std::string::npos);
  model.Update(0, Job("job 0", State::kTraining, 500, 1000), 6);
  model.Update(1, Job("job 1", State::kTraining, 500, 1000), 6);
  // 100 steps/s each: (500 + 500 + 1000 + 1000) steps on two workers.
  ASSERT_TRUE(model.SecondsRemaining(6));
  EXPECT_NEAR(*model.SecondsRemaining(6), 15.0, 1e-9);
}

TEST(ProgressModel, ResumedStepsDoNotCountIntoTheRate) {
  ProgressModel model(Queue(1, 1000), 1);
  JobStatus status = Job("job 0", State::kTraining, 900, 1000);
  status.first_step = 900;
  model.Update(0, status, 0);
  status.step = 920;
  model.Update(0, status, 10);
  EXPECT_NEAR(*model.SecondsRemaining(10), 40.0, 1e-9);
}

TEST(ProgressModel, TheLongestJobBoundsTheTimeLeft) {
  ProgressModel model(Queue(1, 1000), 8);
  model.Update(0, Job("job 0", State::kTraining, 0, 1000), 0);
  model.Update(0, Job("job 0", State::kTraining, 100, 1000), 10);
  EXPECT_NEAR(*model.SecondsRemaining(10), 90.0, 1e-9);
}

TEST(ProgressModel, EvaluationCountsOnceItWasMeasured) {
  ProgressModel model(Queue(2, 100), 1);
  model.Update(0, Job("job 0", State::kTraining, 0, 100), 0);
  model.Update(0, Job("job 0", State::kEvaluating, 100, 100), 10);
  model.Update(0, Job("job 0", State::kDone, 100, 100), 15);
  EXPECT_NEAR(*model.SecondsRemaining(15), 15.0, 1e-9);  // 10 to train, 5 to evaluate
}

TEST(ProgressModel, FinishedAndStoppedJobsNeedNoTime) {
  ProgressModel model(Queue(3, 100), 1);
  EXPECT_TRUE(model.Update(0, Job("job 0", State::kFailed, 3, 100), 1));
  model.Update(1, Job("job 1", State::kInterrupted, 3, 100), 1);
  model.Update(2, Job("job 2", State::kDone, 100, 100), 1);
  EXPECT_EQ(*model.SecondsRemaining(1), 0.0);
  EXPECT_EQ(model.Summary(1), "1/3 jobs done, 1 failed, 1 interrupted, 1s elapsed");
  EXPECT_FALSE(model.Update(2, Job("job 2", State::kDone, 100, 100), 2));
}

TEST(ProgressModel, PlainLines) {
  ProgressModel model(Queue(1, 100), 1);
  JobStatus status = Job("job 0", State::kTraining, 40, 100);
  status.first_step = 40;
  status.note = "resumed at 40";
  model.Update(0, status, 0);
  EXPECT_EQ(model.Line(0), "job 0: training, 100 steps (resumed at 40)");
  status.step = 60;
  status.loss = 0.25;
  status.accuracy = 98.04;
  status.note.clear();
  model.Update(0, status, 4);
  EXPECT_EQ(model.Line(0), "job 0: step 60/100, 5 steps/s, loss 0.2500, accuracy 98.0 %");
}

TEST(ProgressModel, TableFitsTheTerminal) {
  ProgressModel model(Queue(30, 100000), 30);
  for (std::size_t i = 0; i < 30; ++i) {
    const std::string name = "a method with α, " + std::to_string(i);
    model.Update(i, Job(name, State::kTraining, 0, 100000), 0);
    model.Update(i, Job(name, State::kTraining, 50000, 100000), 100);
  }
  for (const int width : {1, 10, 40, 60, 80, 200}) {
    for (const int height : {1, 2, 5, 24, 100}) {
      for (const bool color : {false, true}) {
        const auto lines = model.Table(100, width, height, color);
        EXPECT_LE(lines.size(), static_cast<std::size_t>(height));
        for (const std::string& line : lines) {
          EXPECT_LE(Columns(line), static_cast<std::size_t>(width)) << line;
        }
      }
    }
  }
  const auto lines = model.Table(100, 80, 5, false);
  ASSERT_EQ(lines.size(), 5U);
  EXPECT_EQ(lines[3], "... and 27 more");
  EXPECT_EQ(lines[4].find("0/30 jobs done, 30 running"), 0U);
}

TEST(ProgressModel, TheBarIsHalfFullHalfWay) {
  ProgressModel model(Queue(1, 1000), 1);
  model.Update(0, Job("job 0", State::kTraining, 500, 1000), 0);
  const std::string row = model.Table(0, 200, 10, false).front();
  const auto count = [&](const std::string& cell) {
    int n = 0;
    for (std::size_t at = row.find(cell); at != std::string::npos; at = row.find(cell, at + 1)) ++n;
    return n;
  };
  EXPECT_EQ(count("━"), 12);
  EXPECT_EQ(count("─"), 12);
}

TEST(ProgressModel, FailedJobsStayInSightWithTheirFirstLine) {
  ProgressModel model(Queue(2, 100), 1);
  JobStatus status = Job("job 1", State::kFailed, 5, 100);
  status.note = "loss is not finite\nat step 5";
  model.Update(1, status, 1);
  const auto lines = model.Table(1, 80, 10, false);
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(lines[0], "job 1  failed: loss is not finite");
}

}  // namespace
}  // namespace tsallis::lab
