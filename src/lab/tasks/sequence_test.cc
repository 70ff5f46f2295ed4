// Sequence tasks: what each promises of its samples, framing, determinism, bad settings.
#include "lab/tasks/sequence.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <thread>

#include "lab/base/errors.h"
#include "lab/tasks/sequence_batch.h"
#include "lab/tasks/sequence_tasks.h"
#include "lab/testing/lab_test_support.h"

namespace tsallis::lab {
namespace {

using Tokens = std::vector<std::int64_t>;

const GeneratedTask& Generated(const SequenceTask& task) {
  return dynamic_cast<const GeneratedTask&>(task);
}

// The first samples of a task at a few lengths.
void ForSamples(const SequenceTask& task, const std::vector<std::int64_t>& lengths,
                const std::function<void(const Text&, std::int64_t)>& look) {
  for (const std::int64_t length : lengths) {
    for (std::int64_t i = 0; i < 50; ++i) {
      look(Generated(task).DrawText(7, Split::kTrain, i, length), length);
    }
  }
}

TEST(SequenceTasks, CopyReverseAndSortAreWhatTheySay) {
  ForSamples(*MakeSequenceTask("copy"), {1, 32, 64}, [](const Text& text, std::int64_t length) {
    EXPECT_EQ(std::ssize(text.source), length);
    EXPECT_EQ(text.source, text.target);
  });
  ForSamples(*MakeSequenceTask("reverse"), {1, 33}, [](const Text& text, std::int64_t) {
    EXPECT_EQ(text.source, Tokens(text.target.rbegin(), text.target.rend()));
  });
  ForSamples(*MakeSequenceTask("sort"), {1, 64}, [](const Text& text, std::int64_t) {
    EXPECT_TRUE(std::is_sorted(text.target.begin(), text.target.end()));
    EXPECT_EQ(std::multiset<std::int64_t>(text.source.begin(), text.source.end()),
              std::multiset<std::int64_t>(text.target.begin(), text.target.end()));
  });
  // Every symbol occurs, about equally often: 50 x 64 draws of 32, 100 each expected, sigma 10.
  std::map<std::int64_t, int> counts;
  ForSamples(*MakeSequenceTask("copy"), {64}, [&](const Text& text, std::int64_t) {
    for (const std::int64_t token : text.source) ++counts[token];
  });
  ASSERT_EQ(counts.size(), 32U);
  EXPECT_EQ(counts.rbegin()->first, 31);
  for (const auto& [token, count] : counts) EXPECT_NEAR(count, 100, 50) << token;
}

TEST(SequenceTasks, NBackNamesTheTokenBefore) {
  for (const std::int64_t back : {1, 2, 5}) {
    const TaskPointer task = MakeSequenceTask("n-back", {"back=" + std::to_string(back)});
    ForSamples(*task, {1, 40}, [&](const Text& text, std::int64_t length) {
      ASSERT_EQ(std::ssize(text.source), length + 1);
      ASSERT_EQ(text.target.size(), text.source.size());
      EXPECT_EQ(text.source[0], 0);
      for (std::int64_t i = 0; i <= length; ++i) {
        EXPECT_TRUE(i == 0 || (text.source[i] >= 1 && text.source[i] < 16));
        EXPECT_EQ(text.target[i], i >= back ? text.source[i - back] : 0);
      }
    });
  }
}

TEST(SequenceTasks, LocalCountCountsWithinRuns) {
  std::int64_t longest = 0;
  std::int64_t shortest = 100;
  ForSamples(*MakeSequenceTask("local-count"), {1, 128, 500},
             [&](const Text& text, std::int64_t n) {
               ASSERT_EQ(std::ssize(text.source), n);
               std::int64_t run = 0;
               for (std::int64_t i = 0; i < n; ++i) {
                 const bool goes_on = i > 0 && text.source[i] == text.source[i - 1];
                 if (i > 0 && !goes_on) {
                   longest = std::max(longest, run + 1);
                   shortest = std::min(shortest, run + 1);
                 }
                 run = goes_on ? run + 1 : 0;
                 ASSERT_EQ(text.target[i], run);
                 ASSERT_LT(text.source[i], 16);
               }
             });
  EXPECT_EQ(longest, 48);
  EXPECT_EQ(shortest, 1);
  EXPECT_EQ(MakeSequenceTask("local-count")->Vocabulary(), 53);
}

TEST(SequenceTasks, FlipFlopAnswersTheLastWrite) {
  for (const double probability : {0.1, 0.8}) {
    const TaskPointer task =
        MakeSequenceTask("flip-flop", {"write_probability=" + std::to_string(probability)});
    int writes = 0;
    int middle = 0;
    ForSamples(*task, {4, 64, 65}, [&](const Text& text, std::int64_t length) {
      ASSERT_EQ(std::ssize(text.source), length / 2 * 2 - 1);
      std::int64_t stored = -1;
      for (std::size_t i = 0; i + 1 < text.source.size(); i += 2) {
        const bool write = text.source[i] == 2;
        EXPECT_TRUE(i > 0 || write);
        if (i > 0) middle += 1;
        if (i > 0 && write) writes += 1;
        EXPECT_TRUE(write || text.source[i] == 3);
        EXPECT_TRUE(text.source[i + 1] == 0 || text.source[i + 1] == 1);
        if (write) stored = text.source[i + 1];
      }
      EXPECT_EQ(text.source.back(), 4);
      EXPECT_EQ(text.target, Tokens{stored});
    });
    EXPECT_NEAR(1.0 * writes / middle, probability, 0.04);
  }
}

TEST(SequenceTasks, MqmtarAsksForPairsOfTheSample) {
  const TaskPointer task = MakeSequenceTask("mqmtar");
  ForSamples(*task, {8, 32, 64, 128, 1024}, [](const Text& text, std::int64_t length) {
    const std::int64_t pairs = length * 8 / 60;
    const std::int64_t field = length / pairs;
    ASSERT_EQ(std::ssize(text.source), pairs * field + 12);
    std::map<Tokens, Tokens> dictionary;
    std::set<Tokens> values;
    for (std::int64_t i = 0; i < pairs; ++i) {
      const auto begin = text.source.begin() + i * field;
      const auto end = begin + field;
      const auto key = std::find_if(begin, end, [](std::int64_t token) { return token != 0; });
      ASSERT_GE(end - key, 6);  // the space behind the value belongs to the pair
      ASSERT_EQ(key[2], 1);
      ASSERT_TRUE(std::all_of(key + 5, end, [](std::int64_t token) { return token == 0; }));
      ASSERT_TRUE(dictionary.insert({Tokens(key, key + 2), Tokens(key + 3, key + 5)}).second);
      ASSERT_TRUE(values.insert(Tokens(key + 3, key + 5)).second);
      for (const int place : {0, 1, 3, 4}) ASSERT_TRUE(key[place] >= 3 && key[place] < 259);
    }
    ASSERT_EQ(text.target.size(), 12U);
    for (std::int64_t query = 0; query < 4; ++query) {
      const auto asked = text.source.end() - 12 + 3 * query;
      const auto answer = text.target.begin() + 3 * query;
      ASSERT_EQ(asked[0], 2);
      ASSERT_EQ(answer[0], 2);
      ASSERT_EQ(dictionary.at(Tokens(asked + 1, asked + 3)), Tokens(answer + 1, answer + 3));
    }
  });
  EXPECT_EQ(Generated(*task).DrawText(1, Split::kTest, 0, 65536).source.size(), 61166U + 12U);
}

TEST(SequenceTasks, MqmtarHasOneVocabularyAndSpreadsItsSpace) {
  // With few words, all splits and seeds must show the same ones.
  const TaskPointer task = MakeSequenceTask("mqmtar", {"words=20"});
  std::map<Split, std::set<Tokens>> keys;
  std::map<std::int64_t, int> offsets;
  for (const Split split : {Split::kTrain, Split::kValidation, Split::kTest}) {
    for (std::int64_t i = 0; i < 300; ++i) {
      const Text text = Generated(*task).DrawText(i, split, i, 64);
      for (std::int64_t field = 0; field < 64; field += 8) {
        std::int64_t at = 0;
        while (text.source[field + at] == 0) ++at;
        ++offsets[at];
        const auto key = text.source.begin() + field + at;
        keys[split].insert(Tokens(key, key + 2));
      }
    }
  }
  EXPECT_EQ(keys[Split::kTrain].size(), 20U);
  EXPECT_EQ(keys[Split::kTrain], keys[Split::kTest]);
  EXPECT_EQ(keys[Split::kTrain], keys[Split::kValidation]);
  // Two spaces dealt to 7 places before the pair and 5 behind it: C(5,2), 7*5, C(7,2) of C(12,2).
  ASSERT_EQ(offsets.size(), 3U);
  EXPECT_NEAR(offsets[0] / 7200.0, 10.0 / 66, 0.02);
  EXPECT_NEAR(offsets[1] / 7200.0, 35.0 / 66, 0.02);
  EXPECT_NEAR(offsets[2] / 7200.0, 21.0 / 66, 0.02);
}

TEST(SequenceTasks, DelayedCopyFillsTheLength) {
  ForSamples(*MakeSequenceTask("delayed-copy", {"delay=10"}), {14, 256},
             [](const Text& text, std::int64_t length) {
               const std::int64_t prefix = (length - 10) / 2 - 1;
               ASSERT_EQ(std::ssize(text.target), prefix);
               ASSERT_EQ(std::ssize(text.source), prefix + 10);
               EXPECT_TRUE(std::equal(text.target.begin(), text.target.end(), text.source.begin()));
               EXPECT_EQ(std::count(text.source.begin() + prefix, text.source.end(), 32), 10);
             });
  const TaskPointer task = MakeSequenceTask("delayed-copy");
  EXPECT_EQ(task->Draw(1, Split::kTrain, 0, 256).tokens.size(), 256U);
}

TEST(SequenceTasks, FramingShiftsAndScoresTheTargetAndItsEnd) {
  const TaskPointer copy = MakeSequenceTask("copy", {"symbols=4"});
  const Text text = Generated(*copy).DrawText(1, Split::kTrain, 3, 3);
  const Sample sample = copy->Draw(1, Split::kTrain, 3, 3);
  const Tokens& s = text.source;
  EXPECT_EQ(sample.tokens, (Tokens{5, s[0], s[1], s[2], 8, s[0], s[1], s[2]}));
  const std::int64_t no = kNotScored;
  EXPECT_EQ(sample.labels, (Tokens{no, no, no, no, s[0], s[1], s[2], 6}));
  EXPECT_EQ(copy->Word(4) + copy->Word(5) + copy->Word(6) + copy->Word(8), "<pad><bos><eos><sep>");
  EXPECT_EQ(copy->Vocabulary(), 9);

  const TaskPointer flip_flop = MakeSequenceTask("flip-flop");
  const Sample bit = flip_flop->Draw(1, Split::kTrain, 0, 6);
  ASSERT_EQ(bit.tokens.size(), 7U);  // bos, two pairs and the read; the bit itself is read too
  EXPECT_EQ(bit.tokens[5], 4);
  EXPECT_EQ(bit.labels[5], bit.tokens[6]);
  EXPECT_EQ(bit.labels[6], Generated(*flip_flop).Eos());
  EXPECT_EQ(std::count(bit.labels.begin(), bit.labels.end(), no), 5);

  const TaskPointer count = MakeSequenceTask("local-count");
  const Sample counted = count->Draw(1, Split::kTrain, 0, 10);
  ASSERT_EQ(counted.tokens.size(), 12U);
  EXPECT_EQ(counted.labels.front(), no);
  EXPECT_EQ(counted.labels.back(), no);
  EXPECT_EQ(counted.labels[1], 0);
  EXPECT_EQ(count->GetScoring(), Scoring::kTokens);
}

// For all generated tasks there are, the next one included.
TEST(SequenceTasks, SamplesAreAFunctionOfSeedSplitIndexAndLength) {
  for (const SequenceTaskEntry& entry : SequenceTasks()) {
    const TaskPointer task = MakeSequenceTask(entry.name);
    if (dynamic_cast<const GeneratedTask*>(task.get()) == nullptr) continue;  // reads a corpus
    const Sample first = task->Draw(1, Split::kTrain, 5, 48);
    std::vector<Sample> others(4);
    {
      std::vector<std::thread> threads;
      for (std::size_t t = 0; t < others.size(); ++t) {
        threads.emplace_back([&, t] {
          // Earlier draws of a thread must not matter.
          for (std::size_t i = 0; i < t; ++i) task->Draw(t, Split::kTest, 9, 40);
          others[t] = MakeSequenceTask(entry.name)->Draw(1, Split::kTrain, 5, 48);
        });
      }
      for (std::thread& thread : threads) thread.join();
    }
    for (const Sample& other : others) {
      EXPECT_EQ(first.tokens, other.tokens) << entry.name;
      EXPECT_EQ(first.labels, other.labels) << entry.name;
    }
    std::set<Tokens> sources;
    const auto look = [&](std::uint64_t seed, Split split, std::int64_t index) {
      sources.insert(Generated(*task).DrawText(seed, split, index, 48).source);
    };
    look(1, Split::kTrain, 5);
    look(1, Split::kTrain, 6);
    look(2, Split::kTrain, 5);
    look(1, Split::kValidation, 5);
    look(1, Split::kTest, 5);
    EXPECT_EQ(sources.size(), 5U) << entry.name;
    for (const std::int64_t token : first.tokens) {
      EXPECT_TRUE(token >= 0 && token < task->Vocabulary() && token != task->Pad());
    }
    ExpectContains(UsageErrorOf([&] { task->Draw(1, Split::kTrain, 0, 0); }), "length: expected");
    ExpectContains(UsageErrorOf([&] { task->Draw(1, Split::kTrain, 0, -5); }), "got -5");
    ExpectContains(UsageErrorOf([&] { task->Draw(1, Split::kTrain, 0, 1 << 20); }), "got 1048576");
  }
}

TEST(SequenceTasks, BadSettingsAreRefused) {
  const auto error = [](const std::string& name, const std::string& setting) {
    return UsageErrorOf([&] { MakeSequenceTask(name, {setting}); });
  };
  ExpectContains(error("coppy", "symbols=3"), "did you mean \"copy\"?");
  ExpectContains(error("copy", "symbol=3"), "symbol: unknown key; did you mean \"symbols\"?");
  ExpectContains(error("copy", "symbols=1"), "expected at least two symbols");
  ExpectContains(error("copy", "symbols"),
                 "expected key=value, as in train.lr=1e-3, got \"symbols\"");
  ExpectContains(error("copy", "symbols=many"), "got the string \"many\"");
  ExpectContains(error("flip-flop", "write_probability=1.5"), "expected a probability");
  ExpectContains(error("mqmtar", "symbols=4"), "there are only 16 words of two of the 4 symbols");
  ExpectContains(error("n-back", "back=0"), "expected a value > 0");
  ExpectContains(UsageErrorOf([] { MakeSequenceTask("mqmtar")->Draw(1, Split::kTrain, 0, 80000); }),
                 "length: expected 8 to 75007 for this task, got 80000");
}

TEST(SequenceBatches, ArePaddedOnTheRightAndSliceTheirSplit) {
  const TaskPointer task = MakeSequenceTask("copy");
  const TokenBatch all = DrawBatch(*task, 3, Split::kTest, 0, 6, 16);
  EXPECT_EQ(all.tokens.sizes(), (c10::IntArrayRef{6, 34}));
  EXPECT_TRUE(at::equal(all.lengths, at::full({6}, 34, at::kLong)));
  EXPECT_EQ(all.labels.ne(kNotScored).sum().item<std::int64_t>(), 6 * 17);
  const TokenBatch part = DrawBatch(*task, 3, Split::kTest, 4, 2, 16);
  EXPECT_TRUE(at::equal(all.tokens.narrow(0, 4, 2), part.tokens));
  std::set<std::int64_t> lengths;
  for (std::int64_t step = 0; step < 1000; ++step) lengths.insert(TrainingLength(1, step, 32, 64));
  EXPECT_EQ(lengths.size(), 33U);
  EXPECT_EQ(*lengths.begin(), 32);
  EXPECT_EQ(*lengths.rbegin(), 64);
}

}  // namespace
}  // namespace tsallis::lab
