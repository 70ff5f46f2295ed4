#include "lab/eval/evaluate_translation.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>

#include "lab/base/errors.h"
#include "lab/generate/generate.h"
#include "lab/generate/question.h"
#include "lab/tasks/sequence_batch.h"

namespace tsallis::lab {
namespace {

// Sentences that grow together.
constexpr std::size_t kTogether = 64;

const FramedTask& FramedOf(const SequenceTask& task) {
  const auto* framed = dynamic_cast<const FramedTask*>(&task);
  if (framed != nullptr && framed->GetScoring() == Scoring::kWritten) return *framed;
  throw UsageError("expected a task of translation");
}

std::string TextOf(TextCodec& codec, const FramedTask& task,
                   const std::vector<std::int64_t>& tokens) {
  std::vector<std::uint32_t> words;
  for (const std::int64_t token : tokens) {
    if (token == task.Eos()) break;
    if (token < task.Pad()) words.push_back(static_cast<std::uint32_t>(token));
  }
  return codec.Decode(words);
}

}  // namespace

std::vector<std::string> Translate(SequenceModel& model, const SequenceTask& task, TextCodec& codec,
                                   const std::vector<std::vector<std::int64_t>>& sources,
                                   std::int64_t beams, const std::atomic<bool>& stop) {
  const FramedTask& framed = FramedOf(task);
  GenerateOptions options;
  options.sampler.temperature = 0.0;
  options.end = framed.Eos();
  options.beams = beams;
  options.stop = &stop;
  std::vector<std::string> texts;
  for (std::size_t first = 0; first < sources.size(); first += kTogether) {
    std::vector<Prompt> prompts;
    options.steps = 0;
    for (std::size_t i = first; i < std::min(first + kTogether, sources.size()); ++i) {
      const std::int64_t steps = 2 * static_cast<std::int64_t>(sources[i].size()) + 16;
      prompts.push_back({QuestionOf(framed.Frame({sources[i], {}})).prompt.tokens, {}, steps});
      options.steps = std::max(options.steps, steps);
    }
    for (const Written& written : Generate(model, prompts, options)) {
      texts.push_back(TextOf(codec, framed, written.tokens));
    }
    if (stop) throw Interrupted("translation stopped");
  }
  return texts;
}

TranslationScores ScoreSamples(SequenceModel& model, const SequenceTask& task, Split split,
                               std::int64_t n, std::int64_t first, std::int64_t samples,
                               std::int64_t beams, const std::atomic<bool>& stop) {
  const FramedTask& framed = FramedOf(task);
  std::optional<TextCodec> codec = framed.Codec("translation");
  std::vector<std::string> references;
  std::vector<std::vector<std::int64_t>> sources;
  for (std::int64_t i = first; i < first + samples; ++i) {
    Text text = framed.DrawText(kEvaluationSeed, split, i, n);
    references.push_back(TextOf(*codec, framed, text.target));
    sources.push_back(std::move(text.source));
  }
  return ScoreTranslations(Translate(model, task, *codec, sources, beams, stop), references);
}

}  // namespace tsallis::lab
