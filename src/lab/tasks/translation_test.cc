#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "lab/tasks/sequence_batch.h"
#include "lab/tasks/sequence_tasks.h"
#include "lab/testing/lab_test_support.h"
#include "lab/text/prepare.h"

namespace tsallis::lab {
namespace {

namespace fs = std::filesystem;
using Tokens = std::vector<std::int64_t>;

// Pair i of a part has i + 1 letters, and twice as many in its translation.
class TranslationTest : public testing::Test {
 protected:
  void SetUp() override {
    const fs::path files = folder_.Path() / "files";
    fs::create_directories(files);
    for (const std::string part : {"train", "valid", "test"}) {
      std::ofstream source(files / (part + ".en")), target(files / (part + ".de"));
      for (int i = 0; i < kPairs; ++i) {
        source << std::string(static_cast<std::size_t>(i + 1), part[1]) << "\n";
        target << std::string(static_cast<std::size_t>(2 * i + 2), 'X') << "\n";
      }
    }
    options_.name = "letters";
    options_.inputs = {files};
    options_.pairs = Sides{"en", "de"};
    options_.folder = folder_.Path() / "corpus";
    Prepare();
  }
  void Prepare() { PrepareCorpus(options_); }
  TaskPointer Task(std::int64_t vocabulary = 256) {
    return MakeSequenceTask("translation", {"corpus=" + options_.folder.string(),
                                            "vocabulary=" + std::to_string(vocabulary)});
  }

  static constexpr int kPairs = 40;
  TemporaryFolder folder_;
  PrepareOptions options_;
};

// How many letters the source of a sample has.
std::int64_t Letters(const Sample& sample) {
  return std::count(sample.tokens.begin(), sample.tokens.end(), 'r');
}

TEST_F(TranslationTest, ASampleIsASourceAndItsTranslation) {
  const TaskPointer task = Task();
  EXPECT_EQ(task->Vocabulary(), 261);
  EXPECT_EQ(task->Pad(), 256);
  EXPECT_EQ(task->GetScoring(), Scoring::kWritten);
  EXPECT_EQ(task->GetMetric().name, "BLEU");
  EXPECT_TRUE(task->GetMetric().higher_is_better);
  constexpr std::int64_t kBos = 257, kEos = 258, kSep = 260, kNo = kNotScored;
  const Sample sample = task->Draw(1, Split::kTest, 1, 40);
  EXPECT_EQ(sample.tokens, (Tokens{kBos, 'e', 'e', kSep, 'X', 'X', 'X', 'X'}));
  EXPECT_EQ(sample.labels, (Tokens{kNo, kNo, kNo, 'X', 'X', 'X', 'X', kEos}));
  const auto& framed = dynamic_cast<const FramedTask&>(*task);
  EXPECT_EQ(framed.Bos(), kBos);
  EXPECT_EQ(framed.Eos(), kEos);
  EXPECT_EQ(framed.Sep(), kSep);
  EXPECT_EQ(framed.DrawText(1, Split::kTest, 1, 40).source, (Tokens{'e', 'e'}));
  const TokenBatch batch = DrawBatch(*task, 1, Split::kTest, 0, 2, 40);
  EXPECT_EQ(batch.tokens.sizes(), (c10::IntArrayRef{2, 8}));
  EXPECT_EQ(batch.tokens[0][7].item<std::int64_t>(), 256) << "pad";
}

TEST_F(TranslationTest, AnEpochReadsEveryPairOnce) {
  const TaskPointer task = Task();
  std::vector<std::vector<std::int64_t>> epochs;
  for (std::int64_t i = 0; i < 3 * kPairs; ++i) {
    if (i % kPairs == 0) epochs.emplace_back();
    epochs.back().push_back(Letters(task->Draw(5, Split::kTrain, i, kPairs)));
  }
  for (std::vector<std::int64_t> epoch : epochs) {
    std::sort(epoch.begin(), epoch.end());
    for (int i = 0; i < kPairs; ++i) EXPECT_EQ(epoch[i], i + 1);
  }
  EXPECT_NE(epochs[0], epochs[1]);
  EXPECT_NE(epochs[1], epochs[2]);
  EXPECT_FALSE(std::is_sorted(epochs[0].begin(), epochs[0].end()));
  std::vector<std::int64_t> other;
  for (std::int64_t i = 0; i < kPairs; ++i) {
    other.push_back(Letters(task->Draw(6, Split::kTrain, i, kPairs)));
  }
  EXPECT_NE(other, epochs[0]) << "the order follows the seed";
  // Far on, and as if nothing had been drawn before.
  EXPECT_EQ(Task()->Draw(5, Split::kTrain, kPairs + 3, kPairs).tokens,
            task->Draw(5, Split::kTrain, kPairs + 3, kPairs).tokens);
  EXPECT_GE(Letters(task->Draw(5, Split::kTrain, (std::int64_t{1} << 36) - 1, kPairs)), 1);
}

TEST_F(TranslationTest, SamplesDoNotDependOnThreads) {
  const TaskPointer task = Task();
  std::vector<Tokens> alone;
  for (std::int64_t i = 0; i < 4 * kPairs; ++i) {
    alone.push_back(task->Draw(2, Split::kTrain, i, kPairs).tokens);
  }
  const TaskPointer shared = Task();
  std::vector<std::thread> threads;
  std::vector<int> wrong(4);
  for (std::size_t t = 0; t < wrong.size(); ++t) {
    threads.emplace_back([&, t] {
      for (std::int64_t k = 0; k < 4 * kPairs; ++k) {
        const std::int64_t i = (k * 37 + static_cast<std::int64_t>(t) * 11) % (4 * kPairs);
        const Sample sample = shared->Draw(2, Split::kTrain, i, kPairs);
        wrong[t] += sample.tokens == alone[i] ? 0 : 1;
        shared->Draw(t, Split::kTest, 0, 7);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(4));
}

TEST_F(TranslationTest, TheLengthLimitsBothSides) {
  const TaskPointer task = Task();
  for (const std::int64_t length : {1, 7, 40, 1000}) {
    const std::int64_t count = std::min<std::int64_t>(length, kPairs);
    for (const Split split : {Split::kTrain, Split::kValidation, Split::kTest}) {
      EXPECT_EQ(task->Available(split, length), count);
    }
    std::set<std::int64_t> lengths;
    for (std::int64_t i = 0; i < count; ++i) {
      lengths.insert(Letters(task->Draw(1, Split::kTrain, i, length)));
    }
    EXPECT_EQ(static_cast<std::int64_t>(lengths.size()), count);
    EXPECT_LE(*lengths.rbegin(), length);
    ExpectContains(UsageErrorOf([&] { task->Draw(1, Split::kTest, count, length); }),
                   "its test part has " + std::to_string(count) + " pairs of at most");
  }
  for (const std::int64_t length : {std::int64_t{0}, std::int64_t{-3}, std::int64_t{1} << 20}) {
    ExpectContains(UsageErrorOf([&] { task->Draw(1, Split::kTrain, 0, length); }),
                   "length: expected 1 to 1048575 tokens of a source, got");
  }
  // A translation of 19 letters is too long for a source of one, which may have 2 + 16.
  std::ofstream(folder_.Path() / "files" / "test.en") << "a\nb\n";
  std::ofstream(folder_.Path() / "files" / "test.de") << std::string(18, 'x') << "\n"
                                                      << std::string(19, 'y') << "\n";
  Prepare();
  const TaskPointer again = Task();
  EXPECT_EQ(again->Available(Split::kTest, 1), 1);
  EXPECT_EQ(again->Available(Split::kTest, 2), 2);
  std::ofstream(folder_.Path() / "files" / "valid.en") << "abc\n";
  std::ofstream(folder_.Path() / "files" / "valid.de") << "x\n";
  Prepare();
  ExpectContains(UsageErrorOf([&] { Task()->Available(Split::kValidation, 2); }),
                 "of 1 pairs in its validation part none has at most 2 source and 20 target "
                 "tokens; the shortest source has 3");
}

TEST_F(TranslationTest, WordsAreThoseOfTheTokenizer) {
  std::ofstream(folder_.Path() / "files" / "train.en") << "läßt läßt läßt nach\n";
  std::ofstream(folder_.Path() / "files" / "train.de") << "läßt nach\n";
  options_.tokenizer = "bpe:270";
  Prepare();
  // A recipe may say more tokens than there are: special ones come behind those.
  const TaskPointer task = Task(300);
  EXPECT_EQ(task->Vocabulary(), 305);
  const Sample sample = task->Draw(1, Split::kTrain, 0, 40);
  std::string words;
  for (const std::int64_t token : sample.tokens) words += task->Word(token);
  EXPECT_EQ(words, "<bos>läßt läßt läßt nach<sep>läßt nach");
  EXPECT_EQ(task->Word(sample.labels.back()), "<eos>");
  EXPECT_EQ(task->Word(299), "<299>");
  EXPECT_EQ(task->Codec("text").value().Encode("läßt nach", "text"),
            std::vector<std::uint32_t>(sample.tokens.end() -
                                           std::count_if(sample.labels.begin(), sample.labels.end(),
                                                         [](auto x) { return x != kNotScored; }) +
                                           1,
                                       sample.tokens.end()));
  ExpectContains(UsageErrorOf([&] { Task(256)->Available(Split::kTest, 1); }),
                 "its tokens are tokenizer.json's; expected task.vocabulary 2");
  // A recipe can be read without the corpus.
  EXPECT_EQ(MakeSequenceTask("translation")->Vocabulary(), 4101);
}

}  // namespace
}  // namespace tsallis::lab
