// tsallis task: shows samples of a sequence task, or writes them as text.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/options.h"
#include "lab/base/errors.h"
#include "lab/tasks/sequence_batch.h"
#include "lab/tasks/sequence_tasks.h"

namespace tsallis::cli {

namespace {

class TaskCommand : public Command {
 public:
  std::string Name() const override { return "task"; }
  std::string Summary() const override { return "Show samples of a sequence task"; }
  std::string Example() const override {
    return "  tsallis task mqmtar --length 32\n"
           "  tsallis task flip-flop write_probability=0.8 --samples 5\n"
           "  tsallis task sort --length 512 --split test --samples 1000 --export sort-512.tsv";
  }

  void Declare(CLI::App& app) override {
    app.add_option("NAME", name_, "A sequence task (tsallis list)")->required();
    app.add_option("SETTING", settings_,
                   "Settings of the task, key=value, as in a recipe's [task]");
    app.add_option("--length", length_, "Length, as in the papers' tables")->capture_default_str();
    app.add_option("--samples", samples_, "How many, from the first of the split")
        ->check(IntegerFrom(1, 1 << 30))
        ->capture_default_str();
    app.add_option("--split", split_, "Which samples")
        ->check(OneOf({"train", "validation", "test"}))
        ->capture_default_str();
    app.add_option("--seed", seed_,
                   "Seed; default: 1 for train, and for validation and test the one that every "
                   "study is evaluated with");
    app.add_option("--export", export_,
                   "Write one sample a line to this file: the numbers of the source, a tab, those "
                   "of the target, without special tokens");
    app.add_flag("--json", json_, "Print tokens and labels as one JSON document");
    app.add_flag("--quiet", quiet_, "Print the samples without a line above each");
  }

  int Run(const Invocation& invocation) override {
    stop_ = invocation.stop;
    const lab::TaskPointer task = lab::MakeSequenceTask(name_, settings_);
    task->CheckLength(length_);
    const std::map<std::string, lab::Split> splits = {{"train", lab::Split::kTrain},
                                                      {"validation", lab::Split::kValidation},
                                                      {"test", lab::Split::kTest}};
    const lab::Split split = splits.at(split_);
    if (!seed_) seed_ = split == lab::Split::kTrain ? 1 : lab::kEvaluationSeed;
    if (!export_.empty()) Export(*task, split);
    if (json_) {
      PrintJson(*task, split);
    } else if (export_.empty()) {
      PrintText(*task, split);
    }
    return 0;
  }

 private:
  // Called before the sample of that number. Throws Interrupted.
  void CheckStop(std::int64_t sample) const {
    if (*stop_) throw lab::Interrupted(fmt::format("stopped after {} samples", sample));
  }

  void Export(const lab::SequenceTask& task, lab::Split split) const {
    const auto* framed = dynamic_cast<const lab::FramedTask*>(&task);
    if (framed == nullptr) {
      throw lab::UsageError("--export: expected a task with sources and targets, got " + name_);
    }
    std::ofstream out(export_);
    for (std::int64_t i = 0; out && i < samples_; ++i) {
      CheckStop(i);
      const lab::Text text = framed->DrawText(*seed_, split, i, length_);
      out << fmt::format("{}\t{}\n", fmt::join(text.source, " "), fmt::join(text.target, " "));
    }
    out.close();
    if (!out) throw std::runtime_error(export_ + ": cannot be written");
  }

  void PrintJson(const lab::SequenceTask& task, lab::Split split) const {
    nlohmann::ordered_json document = {{"task", name_},
                                       {"split", split_},
                                       {"seed", *seed_},
                                       {"length", length_},
                                       {"vocabulary", task.Vocabulary()},
                                       {"generates", task.GetScoring() != lab::Scoring::kTokens},
                                       {"not_scored", lab::kNotScored}};
    document["samples"] = nlohmann::ordered_json::array();
    for (std::int64_t i = 0; i < samples_; ++i) {
      CheckStop(i);
      const lab::Sample sample = task.Draw(*seed_, split, i, length_);
      document["samples"].push_back({{"tokens", sample.tokens}, {"labels", sample.labels}});
    }
    fmt::print("{}\n", document.dump());
  }

  void PrintText(const lab::SequenceTask& task, lab::Split split) const {
    for (std::int64_t i = 0; i < samples_; ++i) {
      CheckStop(i);
      const lab::Sample sample = task.Draw(*seed_, split, i, length_);
      if (i > 0) fmt::print("\n");
      if (!quiet_)
        fmt::print("{} {} of length {}: {} tokens\n", split_, i, length_, sample.tokens.size());
      if (task.GetScoring() == lab::Scoring::kLoss) {
        for (const std::int64_t token : sample.tokens) fmt::print("{}", task.Word(token));
        fmt::print("\n");
      } else if (task.GetScoring() == lab::Scoring::kTokens) {
        PrintLabelled(task, sample);
      } else {
        PrintGenerated(task, sample);
      }
    }
  }

  // Source and target behind one another: what is asked stands in the labels. Text stands without
  // spaces between its tokens.
  static void PrintGenerated(const lab::SequenceTask& task, const lab::Sample& sample) {
    const bool text = dynamic_cast<const lab::GeneratedTask*>(&task) == nullptr;
    std::string source;
    std::string target;
    const auto add = [&](std::string& words, std::int64_t token) {
      if (!text && !words.empty()) words += ' ';
      words += task.Word(token);
    };
    for (std::size_t i = 0; i < sample.tokens.size(); ++i) {
      const bool asked = sample.labels[i] != lab::kNotScored;
      if (target.empty()) add(source, sample.tokens[i]);
      if (asked) add(target, sample.labels[i]);
    }
    fmt::print("  reads {}\n  says  {}\n", source, target);
  }

  // Labels below their tokens.
  static void PrintLabelled(const lab::SequenceTask& task, const lab::Sample& sample) {
    std::string tokens = "  reads";
    std::string labels = "  says ";
    for (std::size_t i = 0; i < sample.tokens.size(); ++i) {
      const std::string token = task.Word(sample.tokens[i]);
      const std::string label =
          sample.labels[i] == lab::kNotScored ? "" : task.Word(sample.labels[i]);
      const std::size_t width = std::max(token.size(), label.size());
      tokens += fmt::format(" {:>{}}", token, width);
      labels += fmt::format(" {:>{}}", label, width);
    }
    fmt::print("{}\n{}\n", tokens, labels.substr(0, labels.find_last_not_of(' ') + 1));
  }

  std::string name_, split_ = "train", export_;
  std::vector<std::string> settings_;
  std::int64_t length_ = 64;
  std::int64_t samples_ = 3;
  std::optional<std::uint64_t> seed_;
  bool json_ = false;
  bool quiet_ = false;
  const std::atomic<bool>* stop_ = nullptr;  // of the invocation
};

}  // namespace

std::unique_ptr<Command> MakeTask() { return std::make_unique<TaskCommand>(); }

}  // namespace tsallis::cli
