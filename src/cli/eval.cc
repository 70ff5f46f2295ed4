// tsallis eval: how right a trained sequence model is, against length.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <numbers>
#include <optional>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/options.h"
#include "cli/terminal.h"
#include "cli/trained_model.h"
#include "core/version.h"
#include "lab/base/errors.h"
#include "lab/base/python.h"
#include "lab/eval/evaluate_sequences.h"
#include "lab/eval/observe_heads.h"
#include "lab/eval/weight_statistics.h"
#include "lab/report/analysis_io.h"
#include "lab/report/render.h"
#include "lab/report/weight_page.h"
#include "lab/tasks/sequence_batch.h"
#include "tsallis/cpu.h"

namespace tsallis::cli {

namespace {

// Tokens of a file that are read as one sequence unless --lengths says more.
constexpr std::int64_t kLongestText = 32768;

// Keys whose scores are looked at: memory grows with the square.
constexpr std::int64_t kLongestScores = 4096;

// Of whole answers.
const lab::Metric kTokensRight = {.sum = "token_hits", .count = "tokens"};

class EvalCommand : public Command {
 public:
  std::string Name() const override { return "eval"; }
  std::string Summary() const override {
    return "Measure how right a trained model is, against length";
  }
  std::string Example() const override {
    return "  tsallis eval runs/copy/quick/softmax-nape/seed-1 --lengths 64,128,256\n"
           "  tsallis eval runs/flip-flop/quick/softmax-nape/seed-1 --lengths 64 --task flip-flop "
           "write_probability=0.8\n"
           "Loss by position on a file of one's own, of a model of bytes:\n"
           "  tsallis eval runs/language/quick/rope/seed-1 --text ~/notes.txt";
  }

  void Declare(CLI::App& app) override {
    auto* task = trained_.Declare(app, "Another task than the one it was trained on");
    AddList(app, "--lengths", lengths_,
            "Lengths, separated by commas; with --text, default: the file's, up to 32768 tokens");
    app.add_option("--samples", samples_, "Samples at every length")
        ->check(IntegerFrom(1, 1 << 30))
        ->capture_default_str();
    auto* split = app.add_option("--split", split_, "Which samples")
                      ->check(OneOf({"validation", "test"}))
                      ->capture_default_str();
    app.add_option("--text", text_,
                   "A file of text instead of a task: the loss on its windows, and by position")
        ->excludes(task)
        ->excludes(split);
    app.add_option("--inputs", inputs_,
                   "File (safetensors) for queries, keys and values of all layers on one sample of "
                   "the longest length; tsallis bench attention --inputs times attention on them");
    app.add_option(
        "--scores", scores_,
        "Folder for what the heads' scores do on one sample of the longest length, up to "
        "4096 tokens: spread, normality, entropy, sparsity (scores.json, scores.png)");
    app.add_option("--heads", heads_,
                   "Folder for a page of the heads' weights on samples of the longest length: "
                   "alpha, weights and blocks of weights above 0, how far the heads of a layer "
                   "differ");
    app.add_flag("--json", json_, "Print one JSON document");
    app.add_flag("--quiet", quiet_, "Print the numbers only");
  }

  int Run(const Invocation& invocation) override {
    trained_.Check();
    CheckInputs();
    if (text_.empty() && lengths_.empty()) throw lab::UsageError("--lengths is required");
    lab::LoadedSequenceModel loaded = trained_.Load();
    for (const auto& [option, wanted] :
         {std::pair("--inputs", !inputs_.empty()), std::pair("--scores", !scores_.empty()),
          std::pair("--heads", !heads_.empty())}) {
      if (wanted) DecoderOf(loaded, option);
    }
    const lab::Split split = split_ == "test" ? lab::Split::kTest : lab::Split::kValidation;
    if (!text_.empty()) {
      loaded.task = lab::MakeFileText(text_, *loaded.task);
      loaded.task_name = text_;
      if (lengths_.empty()) {
        lengths_ = {std::min(scores_.empty() ? kLongestText : kLongestScores,
                             loaded.task->Available(split, 1))};
      }
    }
    CheckVocabulary(loaded, text_.empty() ? "--task" : "--text", text_.empty() ? "task" : "text");
    for (const std::int64_t n : lengths_) loaded.task->CheckLength(n);
    const lab::Metric metric = loaded.task->GetMetric();
    nlohmann::ordered_json rows = nlohmann::ordered_json::array();
    if (!json_ && !quiet_) fmt::print("{}, {}\n", loaded.task_name, loaded.weights.string());
    for (const std::int64_t n : lengths_) {
      const std::int64_t samples =
          text_.empty() ? samples_ : std::min(samples_, loaded.task->Available(split, n));
      const lab::Score score =
          lab::EvaluateLength(*loaded.model, *loaded.task, split, n, samples, *invocation.stop);
      const double value = metric.Value(score);
      const std::int64_t hits = score.at("hits"), asked = score.at("asked");
      if (!json_) {
        fmt::print("  n = {:<8}{:>6.{}f} {}   {}\n", n, value, metric.digits, metric.unit,
                   metric.higher_is_better
                       ? fmt::format("{} of {}", hits, asked) + OfTokens(score)
                       : Bits(value, *loaded.task, split) + fmt::format("{} tokens", asked));
        std::fflush(stdout);
      }
      rows.push_back(
          {{"n", n}, {"samples", samples}, {"hits", hits}, {"asked", asked}, {metric.name, value}});
      if (score.contains("tokens")) {
        rows.back()["token_accuracy"] = kTokensRight.Value(score);
      }
      const std::vector<double> by_position = ByPosition(score);
      for (std::size_t bin = 0; bin < by_position.size(); ++bin) {
        rows.back()["by_position"].push_back({{"begin", lab::PositionBin(bin)},
                                              {"end", std::min(n, lab::PositionBin(bin + 1))},
                                              {metric.name, by_position[bin]}});
      }
      const bool longest = n == *std::max_element(lengths_.begin(), lengths_.end());
      if (!json_ && !quiet_ && longest) PrintByPosition(n, by_position);
    }
    if (!inputs_.empty()) {
      const std::int64_t n = *std::max_element(lengths_.begin(), lengths_.end());
      lab::WriteTensors(inputs_,
                        lab::AttentionInputs(DecoderOf(loaded, "--inputs"), *loaded.task, n));
      if (!json_ && !quiet_) fmt::print("  attention's inputs at n = {}: {}\n", n, inputs_);
    }
    if (!scores_.empty()) DrawScores(loaded);
    if (!heads_.empty()) DrawHeads(loaded, invocation);
    if (json_) {
      const nlohmann::ordered_json document = {{"task", loaded.task_name},
                                               {"weights", loaded.weights.string()},
                                               {"split", split_},
                                               {"rows", rows}};
      PrintJson(document);
    }
    return 0;
  }

 private:
  // "1.234 bits a byte, ", or nothing where the bytes of a token are not known.
  static std::string Bits(double nats, const lab::SequenceTask& task, lab::Split split) {
    const double bytes = task.BytesPerToken(split);
    return bytes > 0.0 ? fmt::format("{:.3f} bits a byte, ", nats / std::numbers::ln2 / bytes) : "";
  }

  // ", 98.1 % of 1234 tokens" where whole answers are scored.
  static std::string OfTokens(const lab::Score& score) {
    if (!score.contains("tokens")) return "";
    return fmt::format(", {:.1f} % of {} tokens", kTokensRight.Value(score),
                       score["tokens"].get<std::int64_t>());
  }

  // The loss in the score's bins of positions; none where it does not count.
  static std::vector<double> ByPosition(const lab::Score& score) {
    std::vector<double> losses;
    for (const auto& bin : score.value("by_position", lab::Score::array())) {
      losses.push_back(lab::LossMetric("token").Value(bin[1].get<double>(), bin[0].get<double>()));
    }
    return losses;
  }

  void DrawScores(lab::LoadedSequenceModel& loaded) const {
    const std::int64_t n = *std::max_element(lengths_.begin(), lengths_.end());
    lab::TensorFile inputs = lab::AttentionInputs(DecoderOf(loaded, "--scores"), *loaded.task, n);
    for (auto& [name, tensor] : inputs.tensors) {
      if (tensor.scalar_type() == at::kBFloat16) tensor = tensor.to(at::kFloat);
    }
    lab::WriteTensors(scores_ / "inputs.safetensors", inputs);
    lab::RunPython("tsallis_report.scores", {std::filesystem::absolute(scores_)}, false);
    if (!json_ && !quiet_) {
      fmt::print("  scores at n = {}: {}\n", n, (scores_ / "scores.png").string());
    }
  }

  void DrawHeads(lab::LoadedSequenceModel& loaded, const Invocation& invocation) const {
    const auto start = std::chrono::steady_clock::now();
    const std::int64_t n = *std::max_element(lengths_.begin(), lengths_.end());
    lab::AnalysisReport page;
    page.name = "heads";
    page.title = "The weights of a trained model's heads";
    page.source = "adaptively-sparse-transformers, figures 11 to 14";
    page.scale = "full";
    page.seed = lab::kEvaluationSeed;
    page.checkpoint = loaded.weights.string();
    page.commit = GitCommit();
    page.processor = QueryCpu().processor;
    page.command = invocation.line;
    page.result = lab::WeightPage(
        lab::MeasureWeights(DecoderOf(loaded, "--heads"), *loaded.task, n, *invocation.stop));
    page.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    lab::WriteAnalysis(page, heads_);
    lab::RenderReports({heads_});
    if (!json_ && !quiet_) {
      fmt::print("  heads at n = {}: {}\n", n, (heads_ / "report.html").string());
    }
  }

  // The loss by position, as bars.
  static void PrintByPosition(std::int64_t n, const std::vector<double>& losses) {
    double most = 0.0;
    for (const double loss : losses) most = std::max(most, loss);
    if (!(most > 0.0)) return;
    fmt::print("  by position:\n");
    for (std::size_t i = 0; i < losses.size(); ++i) {
      const double loss = losses[i];
      const std::string range =
          fmt::format("{} to {}", lab::PositionBin(i), std::min(n, lab::PositionBin(i + 1)) - 1);
      std::string bar;
      for (int k = 0; k < std::lround(40.0 * loss / most); ++k) bar += "█";
      fmt::print("    {:<16}{:>6.3f}  {}\n", range, loss, bar);
    }
  }

  // Before the evaluation, which may take hours.
  void CheckInputs() const {
    if (!scores_.empty()) {
      for (const std::int64_t n : lengths_) {
        if (n <= kLongestScores) continue;
        throw lab::UsageError(
            fmt::format("--scores: expected --lengths up to {}, got {}", kLongestScores, n));
      }
      CheckWritable("--scores", scores_);
      std::filesystem::create_directories(scores_);
    }
    if (!heads_.empty()) CheckWritable("--heads", heads_);
    if (inputs_.empty()) return;
    const std::filesystem::path file(inputs_);
    const std::filesystem::path folder = file.has_parent_path() ? file.parent_path() : ".";
    if (std::filesystem::is_directory(file) || !std::filesystem::is_directory(folder)) {
      throw lab::UsageError("--inputs: expected a file in a folder that exists, got " + inputs_);
    }
    CheckWritable("--inputs", folder);
  }

  TrainedModelOptions trained_;
  std::string text_, split_ = "test", inputs_;
  std::filesystem::path scores_, heads_;
  std::vector<std::int64_t> lengths_;
  std::int64_t samples_ = 1000;
  bool json_ = false;
  bool quiet_ = false;
};

}  // namespace

std::unique_ptr<Command> MakeEval() { return std::make_unique<EvalCommand>(); }

}  // namespace tsallis::cli
