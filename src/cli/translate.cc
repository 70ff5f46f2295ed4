// tsallis translate: a trained model of translation reads lines and writes lines.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/commands.h"
#include "cli/options.h"
#include "cli/terminal.h"
#include "cli/trained_model.h"
#include "lab/base/errors.h"
#include "lab/base/files.h"
#include "lab/base/python.h"
#include "lab/eval/evaluate_translation.h"
#include "lab/eval/observe_packed.h"
#include "lab/tasks/sequence_batch.h"

namespace tsallis::cli {
namespace {

using Tokens = std::vector<std::int64_t>;
using Json = nlohmann::ordered_json;

// Lines that are read before the first is translated; then as many again.
constexpr std::size_t kLines = 64;

class TranslateCommand : public Command {
 public:
  std::string Name() const override { return "translate"; }
  std::string Summary() const override { return "Translate lines of text with a trained model"; }
  std::string Example() const override {
    return "  echo 'cannot open file' | tsallis translate runs/translation/quick/learned/seed-1\n"
           "  tsallis translate runs/translation/quick/softmax/seed-1 --input sentences.en "
           "--show attention";
  }

  void Declare(CLI::App& app) override {
    model_.DeclareModel(app);
    app.add_option("--input", input_,
                   "File of one sentence a line; default: standard input, line by line");
    app.add_option(
        "--reference", reference_,
        "File of the right translations, one a line: prints their scores by sacrebleu at the end");
    app.add_option("--beams", beams_, "Beams of the search; 1: the likeliest token each time")
        ->check(IntegerFrom(1, 64))
        ->capture_default_str();
    app.add_option("--show", show_,
                   "Folder for pictures of where the translations look in their sources "
                   "(alignment.json, alignment-1.png, ...), of the first 20 sentences");
    AddList(app, "--heads", heads_,
            "Heads that --show draws, LAYER.HEAD from 1: 1.4,3.2; default: of every layer the "
            "sparsest and the densest");
    app.add_flag("--json", json_, "Print one JSON document");
    app.add_flag("--quiet", quiet_, "Do not say where pictures are");
  }

  int Run(const Invocation& invocation) override {
    if (!heads_.empty() && show_.empty()) throw lab::UsageError("--heads needs --show");
    if (!show_.empty()) CheckWritable("--show", show_);
    const std::vector<std::string> references =
        reference_.empty() ? std::vector<std::string>() : LinesOf("--reference", reference_);
    lab::LoadedSequenceModel loaded = model_.Load();
    if (loaded.task->GetScoring() != lab::Scoring::kWritten) {
      throw lab::UsageError(fmt::format("{}: expected a model of translation, it was trained on {}",
                                        model_.path, loaded.task_name));
    }
    if (!show_.empty() && !lab::HasContext(*loaded.model)) {
      throw lab::UsageError(fmt::format("--show: expected an encoder-decoder, {} is of a {}",
                                        model_.path, loaded.model->Architecture()));
    }
    std::optional<lab::TextCodec> codec = loaded.task->Codec(model_.path);
    std::ifstream file;
    if (!input_.empty()) {
      file.open(input_, std::ios::binary);
      if (!file) throw lab::UsageError("--input: " + input_ + " cannot be read");
    }
    std::istream& in = input_.empty() ? std::cin : file;
    while (Read(in)) {
      std::vector<Tokens> sources;
      for (std::size_t i = done_.size(); i < read_.size(); ++i) {
        sources.push_back(TokensOf(i, *codec, loaded));
      }
      const std::vector<std::string> texts =
          lab::Translate(*loaded.model, *loaded.task, *codec, sources, beams_, *invocation.stop);
      for (std::size_t i = 0; i < texts.size(); ++i) {
        if (!json_) fmt::print("{}\n", texts[i]);
        if (!show_.empty() && shown_.size() < 20) {
          const std::vector<std::uint32_t> target = codec->Encode(texts[i], "translation");
          shown_.push_back(Alignment(loaded, sources[i], {target.begin(), target.end()}));
        }
      }
      std::fflush(stdout);
      done_.insert(done_.end(), texts.begin(), texts.end());
    }
    if (done_.empty()) {
      throw lab::UsageError(Place() + ": expected lines to translate, got none");
    }
    std::optional<lab::TranslationScores> scores;
    if (!reference_.empty()) {
      if (references.size() != done_.size()) {
        throw lab::UsageError(
            fmt::format("--reference: expected {} lines, one for each translated line, "
                        "got {}",
                        done_.size(), references.size()));
      }
      scores = lab::ScoreTranslations(done_, references);
    }
    if (!show_.empty()) {
      std::filesystem::create_directories(show_);
      lab::WriteFileAtomically(show_ / "alignment.json", Json{{"sentences", shown_}}.dump() + "\n");
      lab::RunPython("tsallis_report.alignment", {std::filesystem::absolute(show_)}, false);
    }
    Print(scores, loaded.task->Metrics());
    return 0;
  }

 private:
  std::string Place() const { return input_.empty() ? "standard input" : input_; }

  static std::string Without(std::string line) {
    if (!line.empty() && line.back() == '\r') line.pop_back();
    return line;
  }

  static std::vector<std::string> LinesOf(const std::string& option, const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    if (!in) throw lab::UsageError(option + ": " + path + " cannot be read");
    std::vector<std::string> lines;
    for (std::string line; std::getline(in, line);) lines.push_back(Without(line));
    return lines;
  }

  // The next lines: one where somebody types, else some at a time.
  bool Read(std::istream& in) {
    const std::size_t most = read_.size() + (input_.empty() ? 1 : kLines);
    for (std::string line; read_.size() < most && std::getline(in, line);) {
      read_.push_back(Without(line));
    }
    return read_.size() > done_.size();
  }

  Tokens TokensOf(std::size_t line, lab::TextCodec& codec,
                  const lab::LoadedSequenceModel& loaded) const {
    const std::string name = fmt::format("{}, line {}", Place(), line + 1);
    if (read_[line].find_first_not_of(" \t") == std::string::npos) {
      throw lab::UsageError(name + ": expected a sentence, got an empty line");
    }
    const std::vector<std::uint32_t> tokens = codec.Encode(read_[line], name);
    const auto count = static_cast<std::int64_t>(tokens.size());
    if (count > loaded.train_length) {
      throw lab::UsageError(
          fmt::format("{}: expected a sentence of at most {} tokens, as the model was trained on, "
                      "got {}",
                      name, loaded.train_length, count));
    }
    return {tokens.begin(), tokens.end()};
  }

  Json Alignment(const lab::LoadedSequenceModel& loaded, const Tokens& source,
                 const Tokens& target) const {
    const auto& task = dynamic_cast<const lab::FramedTask&>(*loaded.task);
    const std::vector<lab::ContextWeights> all =
        lab::ContextOf(*loaded.model, lab::BatchOf(task, {task.Frame({source, target})}));
    Json words = Json::array(), said = Json::array(), heads = Json::array();
    words.push_back(task.Word(task.Bos()));
    for (const std::int64_t token : source) words.push_back(task.Word(token));
    for (const std::int64_t token : target) said.push_back(task.Word(token));
    said.push_back(task.Word(task.Eos()));
    for (const lab::ContextWeights* head : Chosen(all)) {
      Json weights = Json::array();
      for (std::int64_t row = 0; row < head->weights.size(0); ++row) {
        Json cells = Json::array();
        for (std::int64_t column = 0; column < head->weights.size(1); ++column) {
          cells.push_back(std::round(head->weights[row][column].item<double>() * 1e4) / 1e4);
        }
        weights.push_back(std::move(cells));
      }
      heads.push_back({{"layer", head->layer},
                       {"head", head->head},
                       {"alpha", head->alpha ? Json(*head->alpha) : Json(nullptr)},
                       {"weights", std::move(weights)}});
    }
    return {{"source", words}, {"target", said}, {"heads", heads}};
  }

  std::vector<const lab::ContextWeights*> Chosen(
      const std::vector<lab::ContextWeights>& all) const {
    std::vector<const lab::ContextWeights*> chosen;
    for (const std::string& name : heads_) {
      const auto found = std::find_if(all.begin(), all.end(), [&](const auto& head) {
        return name == fmt::format("{}.{}", head.layer + 1, head.head + 1);
      });
      if (found == all.end()) {
        throw lab::UsageError(fmt::format("--heads: expected LAYER.HEAD from 1.1 to {}.{}, got {}",
                                          all.back().layer + 1, all.back().head + 1, name));
      }
      chosen.push_back(&*found);
    }
    if (!chosen.empty()) return chosen;
    const auto sparser = [](const auto* a, const auto* b) { return a->density < b->density; };
    for (std::int64_t layer = 0; layer <= all.back().layer; ++layer) {
      std::vector<const lab::ContextWeights*> own;
      for (const auto& head : all) {
        if (head.layer == layer) own.push_back(&head);
      }
      chosen.push_back(*std::min_element(own.begin(), own.end(), sparser));
      if (own.size() > 1) chosen.push_back(*std::max_element(own.begin(), own.end(), sparser));
    }
    return chosen;
  }

  void Print(const std::optional<lab::TranslationScores>& scores,
             const std::vector<lab::Metric>& metrics) const {
    if (json_) {
      Json document = {{"weights", model_.path}, {"sentences", Json::array()}};
      for (std::size_t i = 0; i < done_.size(); ++i) {
        document["sentences"].push_back({{"source", read_[i]}, {"translation", done_[i]}});
      }
      if (scores) {
        document.update(scores->of_corpus);
        document["signature"] = scores->signature;
      }
      PrintJson(document);
      return;
    }
    if (scores) {
      std::string text;
      for (const lab::Metric& metric : metrics) {
        if (metric.AddsUp()) continue;  // no score of a text
        text += fmt::format("{}{} {:.{}f}", text.empty() ? "" : ", ", metric.name,
                            metric.Value(scores->of_corpus), metric.digits);
      }
      fmt::print(stderr, "{} ({})\n", text, scores->signature);
    }
    if (!show_.empty() && !quiet_) {
      fmt::print(stderr, "Pictures of {} sentences: {}\n", shown_.size(), show_.string());
    }
  }

  TrainedModelOptions model_;
  std::string input_, reference_;
  std::filesystem::path show_;
  std::vector<std::string> heads_;
  std::int64_t beams_ = lab::kTestBeams;
  bool json_ = false, quiet_ = false;
  std::vector<std::string> read_, done_;
  std::vector<Json> shown_;
};

}  // namespace

std::unique_ptr<Command> MakeTranslate() { return std::make_unique<TranslateCommand>(); }

}  // namespace tsallis::cli
