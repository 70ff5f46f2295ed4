#include "lab/generate/generate.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "lab/generate/question.h"
#include "lab/tasks/sequence_batch.h"
#include "lab/tasks/sequence_tasks.h"
#include "lab/testing/decoder_variants.h"
#include "lab/testing/lab_test_support.h"
#include "tsallis/kv_cache.h"

namespace tsallis::lab {
namespace {

using at::Tensor;
using Tokens = std::vector<std::int64_t>;

Shaken<> Model(std::int64_t vocabulary, const std::string& map = "entmax") {
  DecoderConfig config = Tiny();
  config.vocabulary = vocabulary;
  config.attention.map = map;
  config.attention.positions.kind = "nape";
  return Shaken<>(config, 5);
}

// ln of the model's probabilities behind every token: [n, vocabulary].
Tensor LogLikelihoods(Decoder& model, const Tokens& tokens) {
  const Tensor logits =
      model.Forward({at::tensor(tokens, at::kLong).unsqueeze(0), Tensor(), Tensor()});
  return at::log_softmax(logits.to(at::kDouble), 1);
}

Tokens Joined(Tokens a, const Tokens& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

double LogLikelihood(Decoder& model, const Tokens& prompt, const Tokens& text) {
  const Tensor of = LogLikelihoods(model, Joined(prompt, text));
  double sum = 0.0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    sum += of[static_cast<std::int64_t>(prompt.size() + i) - 1][text[i]].item<double>();
  }
  return sum;
}

// On every task that has an answer to write.
TEST(Generate, GreedyTextIsTheArgmaxOfWhatIsReadAtOnce) {
  for (const SequenceTaskEntry& entry : SequenceTasks()) {
    const std::string name = entry.name;
    if (name == "text" || name == "needle") continue;  // corpora: python/tests
    const TaskPointer task = MakeSequenceTask(name, {});
    if (task->GetScoring() != Scoring::kExact) continue;
    Shaken<> model = Model(task->Vocabulary());
    std::vector<Prompt> prompts;
    std::vector<Question> questions;
    std::int64_t steps = 0;
    for (std::int64_t i = 0; i < 3; ++i) {
      questions.push_back(QuestionOf(task->Draw(kEvaluationSeed, Split::kTest, i, 32)));
      prompts.push_back(questions.back().prompt);
      steps = std::max(steps, static_cast<std::int64_t>(questions.back().answer.size()));
    }
    GenerateOptions options;
    options.sampler.temperature = 0.0;
    options.steps = steps;
    const std::vector<Written> texts = Generate(model, prompts, options);
    ASSERT_EQ(texts.size(), prompts.size());
    for (std::size_t i = 0; i < texts.size(); ++i) {
      const Tokens& prompt = prompts[i].tokens;
      const Tokens& text = texts[i].tokens;
      ASSERT_EQ(static_cast<std::int64_t>(text.size()), steps) << name;
      const Tensor of = LogLikelihoods(model, Joined(prompt, text));
      for (std::size_t t = 0; t < text.size(); ++t) {
        const Tensor row = of[static_cast<std::int64_t>(prompt.size() + t) - 1];
        if (t < prompts[i].given.size() && prompts[i].given[t] != kFree) {
          EXPECT_EQ(text[t], prompts[i].given[t]) << name;
          continue;
        }
        // But for ties within rounding.
        EXPECT_GT(row[text[t]].item<double>(), row.max().item<double>() - 1e-4)
            << name << " sample " << i << " step " << t;
      }
    }
  }
}

TEST(Generate, AQuestionHoldsWhatIsReadAndWhatIsAsked) {
  const Sample sample{{7, 1, 2, 3, 4, 5}, {kNotScored, kNotScored, 3, kNotScored, 5, 6}};
  const Question question = QuestionOf(sample);
  EXPECT_EQ(question.prompt.tokens, (Tokens{7, 1, 2}));
  EXPECT_EQ(question.answer, (Tokens{3, 4, 5, 6}));
  EXPECT_EQ(question.prompt.given, (Tokens{kFree, 4, kFree, kFree}));
}

TEST(Generate, ATextDependsOnSeedAndPlaceAlone) {
  Shaken<> model = Model(40);
  GenerateOptions options;
  options.steps = 30;
  options.sampler.seed = 3;
  const std::vector<Prompt> many = {
      {{1, 2, 3}, {}}, {{4}, {}}, {{1, 2, 3}, {}}, {Tokens(70, 9), {}}, {{4, 5, 6, 7}, {}}};
  const std::vector<Written> all = Generate(model, many, options);
  EXPECT_NE(all[0].tokens, all[2].tokens);  // the same prompt, another place
  for (std::size_t count = 1; count < many.size(); ++count) {
    const std::vector<Written> some =
        Generate(model, {many.begin(), many.begin() + static_cast<std::ptrdiff_t>(count)}, options);
    for (std::size_t i = 0; i < count; ++i) {
      EXPECT_EQ(some[i].tokens, all[i].tokens);
      EXPECT_EQ(some[i].log_likelihood, all[i].log_likelihood);
    }
  }
  EXPECT_NEAR(all[0].log_likelihood, LogLikelihood(model, {1, 2, 3}, all[0].tokens), 1e-3);
  options.sampler.seed = 4;
  EXPECT_NE(Generate(model, many, options)[0].tokens, all[0].tokens);
}

TEST(Generate, TextsEndAndStop) {
  Shaken<> model = Model(12);
  GenerateOptions options;
  options.steps = 200;
  options.end = 5;
  const std::vector<Prompt> prompts(8, Prompt{{1, 2}, {}});
  for (const Written& text : Generate(model, prompts, options)) {
    const auto end = std::find(text.tokens.begin(), text.tokens.end(), 5);
    EXPECT_TRUE(end == text.tokens.end() || end + 1 == text.tokens.end());
    EXPECT_EQ(text.said, static_cast<std::int64_t>(text.tokens.size()));
  }
  std::atomic<bool> stop = false;
  options.end.reset();
  options.stop = &stop;
  std::int64_t told = 0;
  options.each = [&](std::size_t, std::int64_t) { stop = ++told == 24; };
  const std::vector<Written> stopped = Generate(model, prompts, options);
  for (const Written& text : stopped) EXPECT_EQ(text.tokens.size(), 3U);
}

// With as many beams as there are texts the search is exhaustive.
TEST(Generate, BeamsFindTheLikeliestText) {
  Shaken<> model = Model(11, "softmax");
  const Tokens prompt = {1, 2, 3};
  GenerateOptions options;
  options.steps = 3;
  options.beams = 11 * 11 * 11;
  const Written found = Generate(model, {{prompt, {}}}, options)[0];
  double best = -1e9;
  for (std::int64_t a = 0; a < 11; ++a) {
    for (std::int64_t b = 0; b < 11; ++b) {
      const Tensor of = LogLikelihoods(model, Joined(prompt, {a, b}));
      best = std::max(
          best, of[2][a].item<double>() + of[3][b].item<double>() + of[4].max().item<double>());
    }
  }
  EXPECT_NEAR(found.log_likelihood, best, 1e-4);
  EXPECT_NEAR(LogLikelihood(model, prompt, found.tokens), best, 1e-4);
  // A narrow search is greedy or better, and a text that ends is weighed by its tokens.
  options.beams = 2;
  options.steps = 12;
  options.end = 4;
  const Written narrow = Generate(model, {{prompt, {}}}, options)[0];
  EXPECT_NEAR(narrow.log_likelihood, LogLikelihood(model, prompt, narrow.tokens), 1e-3);
  EXPECT_EQ(std::count(narrow.tokens.begin(), narrow.tokens.end() - 1, 4), 0);
}

// More prompts than grow together, with as many steps as each of them has.
TEST(Generate, BeamsOfAPromptDoNotSeeTheOthers) {
  Shaken<> model = Model(11);
  GenerateOptions options;
  options.beams = 3;
  options.steps = 9;
  options.end = 4;
  std::vector<Prompt> prompts;
  for (std::int64_t i = 0; i < 40; ++i) prompts.push_back({{i % 11, i % 7, i % 5}, {}, 1 + i % 9});
  const std::vector<Written> together = Generate(model, prompts, options);
  ASSERT_EQ(together.size(), prompts.size());
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    const Written alone = Generate(model, {prompts[i]}, options)[0];
    EXPECT_EQ(together[i].tokens, alone.tokens) << i;
    EXPECT_EQ(together[i].log_likelihood, alone.log_likelihood) << i;
    EXPECT_LE(alone.said, prompts[i].steps);
  }
  // Drawing ends there, too.
  options.beams = 1;
  options.end.reset();
  const std::vector<Written> drawn = Generate(model, prompts, options);
  for (std::size_t i = 0; i < prompts.size(); ++i) EXPECT_EQ(drawn[i].said, prompts[i].steps);
}

TEST(Generate, MistakesAreNamed) {
  Shaken<> model = Model(12);
  GenerateOptions options;
  options.steps = 4;
  EXPECT_TRUE(Generate(model, {}, options).empty());
  ExpectContains(UsageErrorOf([&] {
                   Generate(model, {{{}, {}}}, options);
                 }),
                 "a prompt: expected one token or more");
  options.beams = 2;
  ExpectContains(UsageErrorOf([&] { Generate(model, {{{1}, {2}}}, options); }), "--beams");
  // A model that was trained to pieces says nothing, by whatever search.
  Shaken<> broken = Model(12);
  broken.Parameters().front().second.fill_(std::nan(""));
  for (const std::int64_t beams : {1, 2}) {
    options.beams = beams;
    EXPECT_THROW(Generate(broken, {{{1}, {}}}, options), std::runtime_error) << beams;
  }
  options.beams = 1;
  options.max_bytes = 50000;  // a page
  options.steps = 100;
  EXPECT_THROW(Generate(model, {{{1}, {}}}, options), CacheFull);
}

}  // namespace
}  // namespace tsallis::lab
