// tsallis generate: a trained model writes.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/options.h"
#include "cli/terminal.h"
#include "cli/trained_model.h"
#include "lab/base/errors.h"
#include "lab/base/files.h"
#include "lab/generate/generate.h"
#include "lab/generate/question.h"
#include "lab/tasks/sequence_batch.h"
#include "tsallis/kv_cache.h"

namespace tsallis::cli {
namespace {

constexpr std::int64_t kTextTokens = 256;  // of a text unless --max-new says more

class GenerateCommand : public Command {
 public:
  std::string Name() const override { return "generate"; }
  std::string Summary() const override { return "Let a trained model write, token by token"; }
  std::string Example() const override {
    return "  tsallis generate runs/language/quick/rope/seed-1 --prompt 'import torch' "
           "--temperature 0.7\n"
           "  tsallis generate runs/language/quick/rope/seed-1 --prompt 'def f(' --samples 3 "
           "--entmax 1.5\n"
           "  tsallis generate runs/copy/quick/softmax-nape/seed-1 --length 64 --samples 5";
  }

  void Declare(CLI::App& app) override {
    auto* task = trained_.Declare(app,
                                  "Answer samples of a task; default: the one it was trained on, "
                                  "if that is no language task");
    auto* length =
        app.add_option("--length", length_, "Length of the task's samples")->capture_default_str();
    auto* prompt = app.add_option("--prompt", prompts_, "Text to continue; may be repeated")
                       ->allow_extra_args(false)
                       ->excludes(task)
                       ->excludes(length);
    app.add_option("--prompt-file", prompt_file_, "The same, from a file")
        ->excludes(prompt)
        ->excludes(task)
        ->excludes(length);
    app.add_option("--samples", samples_, "Texts for each prompt, or samples of the task")
        ->check(IntegerFrom(1, 1 << 16))
        ->capture_default_str();
    app.add_option("--max-new", most_, "Tokens to write at most; of a text, default: 256")
        ->check(IntegerFrom(1, 1 << 30));
    sampling_ = {
        app.add_option(
            "--temperature", temperature_,
            "Divides the logits; 0: the likeliest token. Default: 1 for text, 0 for a task"),
        app.add_option("--top-k", sampler_.top_k, "Only the k likeliest tokens; 0: all"),
        app.add_option("--top-p", sampler_.top_p,
                       "Only the fewest likeliest tokens whose probabilities sum to P"),
        app.add_option("--min-p", sampler_.min_p, "Only tokens of P times the likeliest's weight"),
        app.add_option("--entmax", sampler_.entmax,
                       "Draw from entmax of this alpha: its zeros are the cut"),
        app.add_option("--seed", sampler_.seed, "Seed of the sampling")->capture_default_str()};
    app.add_option("--beams", beams_, "Beam search with so many beams instead of sampling")
        ->check(IntegerFrom(1, 1 << 10))
        ->capture_default_str();
    app.add_option("--cache-mb", cache_mb_, "Most memory of keys and values; default: no limit")
        ->check(IntegerFrom(1, 1 << 24));
    auto* json = app.add_flag("--json", json_, "Print one JSON document");
    app.add_flag("--quiet", quiet_, "Print what is written and nothing else")->excludes(json);
  }

  int Run(const Invocation& invocation) override {
    trained_.Check();
    CheckBeams();
    lab::LoadedSequenceModel loaded = trained_.Load();
    CheckVocabulary(loaded, "--task", "task");
    options_.sampler = sampler_;
    options_.beams = beams_;
    options_.max_bytes = cache_mb_.value_or(0) << 20;
    options_.stop = invocation.stop;
    const bool texts = !prompts_.empty() || !prompt_file_.empty();
    try {
      if (texts) {
        WriteTexts(loaded);
      } else {
        AnswerTask(loaded);
      }
    } catch (const CacheFull& full) {
      throw lab::UsageError(fmt::format("--cache-mb {}: {}", *cache_mb_, full.what()));
    }
    if (*invocation.stop) throw lab::Interrupted("what was written is complete up to here");
    return 0;
  }

 private:
  using Clock = std::chrono::steady_clock;

  void CheckBeams() const {
    if (beams_ == 1) return;
    for (const CLI::Option* option : sampling_) {
      if (option->count() == 0) continue;
      throw lab::UsageError(
          fmt::format("--beams {}: expected without {}, for a search draws nothing", beams_,
                      option->get_name()));
    }
  }

  static double SecondsSince(Clock::time_point begin) {
    return std::chrono::duration<double>(Clock::now() - begin).count();
  }

  // ---- texts

  void WriteTexts(lab::LoadedSequenceModel& loaded) {
    std::optional<lab::TextCodec> codec = loaded.task->Codec(trained_.path);
    if (!codec) {
      throw lab::UsageError(fmt::format(
          "--prompt: expected a model of text, this one was trained on {}; without --prompt it "
          "answers samples of that",
          loaded.task_name));
    }
    if (!prompt_file_.empty()) prompts_ = {FileText(prompt_file_)};
    std::vector<lab::Prompt> prompts;
    std::vector<std::string> begins;
    for (const std::string& text : prompts_) {
      const std::vector<std::uint32_t> tokens = codec->Encode(text, "--prompt");
      if (tokens.empty()) throw lab::UsageError("--prompt: expected a text, got an empty one");
      for (std::int64_t i = 0; i < samples_; ++i) {
        prompts.push_back({{tokens.begin(), tokens.end()}, {}});
        begins.push_back(text);
      }
    }
    options_.steps = most_.value_or(kTextTokens);
    options_.sampler.temperature = temperature_.value_or(1.0);
    lab::CheckSampler(options_.sampler);  // before anything is shown
    // One text appears as it is written.
    const bool streams = prompts.size() == 1 && !json_ && beams_ == 1;
    lab::TextStream stream(*codec);
    const auto show = [](const std::string& text) {
      fmt::print("{}", text);
      std::fflush(stdout);
    };
    if (streams) {
      if (!quiet_) show(begins[0]);
      options_.each = [&](std::size_t, std::int64_t token) {
        show(stream.Push(static_cast<std::uint32_t>(token)));
      };
    }
    const Clock::time_point begin = Clock::now();
    const std::vector<lab::Written> texts = lab::Generate(*loaded.model, prompts, options_);
    const double seconds = SecondsSince(begin);
    if (streams) {
      show(stream.End() + "\n");
      if (!quiet_) PrintRate(texts, seconds);
      return;
    }
    nlohmann::ordered_json rows = nlohmann::ordered_json::array();
    for (std::size_t i = 0; i < texts.size(); ++i) {
      const std::vector<std::int64_t>& tokens = texts[i].tokens;
      const std::string text = codec->Decode({tokens.begin(), tokens.end()});
      if (json_) {
        rows.push_back({{"prompt", begins[i]},
                        {"text", text},
                        {"tokens", tokens},
                        {"log_likelihood", texts[i].log_likelihood}});
        continue;
      }
      if (!quiet_)
        fmt::print("{}-- {} of {}\n{}", i > 0 ? "\n" : "", i + 1, texts.size(), begins[i]);
      fmt::print("{}\n", text);
    }
    if (json_) {
      PrintJson({{"weights", loaded.weights.string()}, {"seconds", seconds}, {"texts", rows}});
    } else if (!quiet_) {
      PrintRate(texts, seconds);
    }
  }

  static std::string FileText(const std::string& file) {
    const std::optional<std::string> text = lab::ReadFile(file);
    if (!text) throw lab::UsageError("--prompt-file: " + file + " cannot be read");
    return *text;
  }

  static void PrintRate(const std::vector<lab::Written>& texts, double seconds) {
    std::size_t tokens = 0;
    double likelihood = 0.0;
    std::int64_t said = 0;
    for (const lab::Written& text : texts) {
      tokens += text.tokens.size();
      likelihood += text.log_likelihood;
      said += text.said;
    }
    if (tokens == 0) return;
    std::fflush(stdout);
    fmt::print(stderr, "{} tokens in {:.2f} s, {:.0f} a second; {:.3f} nats a token\n", tokens,
               seconds, static_cast<double>(tokens) / seconds,
               -likelihood / std::max(1.0, static_cast<double>(said)));
  }

  // ---- tasks

  void AnswerTask(lab::LoadedSequenceModel& loaded) {
    if (loaded.task->GetScoring() == lab::Scoring::kLoss) {
      throw lab::UsageError("--prompt or --prompt-file is required: the model goes on from a text");
    }
    if (loaded.task->GetScoring() == lab::Scoring::kTokens) {
      throw lab::UsageError(fmt::format(
          "--task {}: expected a task with an answer to write, this one labels the tokens that it "
          "reads (tsallis eval)",
          loaded.task_name));
    }
    loaded.task->CheckLength(length_);
    std::vector<lab::Question> questions;
    std::vector<lab::Prompt> prompts;
    for (std::int64_t i = 0; i < samples_; ++i) {
      questions.push_back(
          lab::QuestionOf(loaded.task->Draw(lab::kEvaluationSeed, lab::Split::kTest, i, length_)));
      prompts.push_back(questions.back().prompt);
      prompts.back().steps = static_cast<std::int64_t>(questions.back().answer.size());
      options_.steps = std::max(options_.steps, prompts.back().steps);
    }
    if (most_) options_.steps = std::min(options_.steps, *most_);
    options_.sampler.temperature = temperature_.value_or(0.0);
    const auto* framed = dynamic_cast<const lab::FramedTask*>(loaded.task.get());
    if (framed != nullptr) options_.end = framed->Eos();
    const Clock::time_point begin = Clock::now();
    std::vector<lab::Written> texts = lab::Generate(*loaded.model, prompts, options_);
    const double seconds = SecondsSince(begin);
    std::int64_t right = 0;
    nlohmann::ordered_json rows = nlohmann::ordered_json::array();
    for (std::size_t i = 0; i < texts.size(); ++i) {
      std::vector<std::int64_t> answer = questions[i].answer;
      if (most_ && answer.size() > static_cast<std::size_t>(*most_)) {
        answer.resize(static_cast<std::size_t>(*most_));
      }
      const std::vector<std::int64_t>& tokens = texts[i].tokens;
      const bool is_right = tokens == answer;
      right += is_right ? 1 : 0;
      if (json_) {
        rows.push_back({{"reads", questions[i].prompt.tokens},
                        {"says", tokens},
                        {"answer", answer},
                        {"right", is_right},
                        {"log_likelihood", texts[i].log_likelihood}});
        continue;
      }
      const lab::SequenceTask& task = *loaded.task;
      if (!quiet_) {
        fmt::print("{}  reads  {}\n", i > 0 ? "\n" : "", Words(task, questions[i].prompt.tokens));
      }
      fmt::print("{}{}\n", quiet_ ? "" : "  says   ", Words(task, tokens));
      if (!quiet_ && !is_right) fmt::print("  answer {}\n", Words(task, answer));
    }
    if (json_) {
      PrintJson({{"task", loaded.task_name},
                 {"length", length_},
                 {"weights", loaded.weights.string()},
                 {"seconds", seconds},
                 {"right", right},
                 {"samples", rows}});
    } else if (!quiet_) {
      fmt::print("{} of {} right\n", right, texts.size());
      PrintRate(texts, seconds);
    }
  }

  // Text stands without spaces between its tokens.
  static std::string Words(const lab::SequenceTask& task, const std::vector<std::int64_t>& tokens) {
    const bool text = dynamic_cast<const lab::GeneratedTask*>(&task) == nullptr;
    std::string words;
    for (const std::int64_t token : tokens) {
      if (!text && !words.empty()) words += ' ';
      words += task.Word(token);
    }
    return words;
  }

  TrainedModelOptions trained_;
  std::string prompt_file_;
  std::vector<std::string> prompts_;
  std::int64_t length_ = 64, samples_ = 1, beams_ = 1;
  std::optional<std::int64_t> most_, cache_mb_;
  std::optional<double> temperature_;
  lab::SamplerOptions sampler_;
  std::vector<const CLI::Option*> sampling_;
  lab::GenerateOptions options_;
  bool json_ = false, quiet_ = false;
};

}  // namespace

std::unique_ptr<Command> MakeGenerate() { return std::make_unique<GenerateCommand>(); }

}  // namespace tsallis::cli
