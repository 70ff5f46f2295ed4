// Corpora of parallel text, from plain files to pairs.
#include "lab/text/prepare_pairs.h"

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "lab/testing/lab_test_support.h"
#include "lab/text/codec.h"
#include "lab/text/corpus.h"
#include "lab/text/pairs.h"
#include "lab/text/windows.h"

namespace tsallis::lab {
namespace {

namespace fs = std::filesystem;

constexpr PairLimits kAny = {1000, 1000};

class PairsTest : public testing::Test {
 protected:
  void Write(const std::string& name, const std::string& text) {
    fs::create_directories((files_ / name).parent_path());
    std::ofstream(files_ / name, std::ios::binary) << text;
  }
  // Pairs whose sides begin with the name and count, in every part.
  void WriteParts() {
    for (const std::string name : {"a.train", "b.valid", "c.test"}) {
      std::string source, target;
      for (int i = 0; i < 30; ++i) {
        const std::string number = std::to_string(i);
        source += name + " file " + number + "\n";
        target += name + " läßt " + number + " – " + number + "\n";
      }
      Write(name + ".en", source);
      Write(name + ".de", target);
    }
  }
  PrepareOptions Options() {
    PrepareOptions options;
    options.name = "pairs";
    options.inputs = {files_};
    options.pairs = Sides{"en", "de"};
    options.folder = corpus_;
    return options;
  }
  std::string Error(const PrepareOptions& options) {
    return UsageErrorOf([&] { PrepareCorpus(options); });
  }

  TemporaryFolder folder_;
  fs::path files_ = folder_.Path() / "files";
  fs::path corpus_ = folder_.Path() / "corpus";
};

std::string TextOf(TextCodec& codec, const std::vector<std::int64_t>& tokens) {
  return codec.Decode({tokens.begin(), tokens.end()});
}

TEST_F(PairsTest, ComeBackAsTheyStandInTheFiles) {
  WriteParts();
  Write("c.test.fr", "no side of these pairs\n");
  for (const std::string tokenizer : {"", "bpe:300"}) {
    PrepareOptions options = Options();
    options.tokenizer = tokenizer;
    const Prepared made = PrepareCorpus(options);
    EXPECT_TRUE(made.made);
    EXPECT_EQ(made.files, 3);
    EXPECT_EQ(made.skipped, 0);
    for (const std::int64_t pairs : made.pairs) EXPECT_EQ(pairs, 30);
    EXPECT_FALSE(PrepareCorpus(options).made) << "it is there already";
    const Corpus corpus(corpus_);
    ASSERT_TRUE(corpus.Pairs());
    EXPECT_EQ(corpus.Pairs()->source, "en");
    EXPECT_EQ(corpus.Pairs()->target, "de");
    EXPECT_EQ(corpus.Vocabulary(), tokenizer.empty() ? 256 : 300);
    const TextPairs pairs(corpus_.string(), corpus.Vocabulary());
    TextCodec codec(corpus.TokenizerFile());
    for (const auto& [split, name] :
         std::map<Split, std::string>{{Split::kValidation, "b.valid"}, {Split::kTest, "c.test"}}) {
      ASSERT_EQ(pairs.Count(split, kAny), 30);
      for (int i = 0; i < 30; ++i) {
        const SentencePair pair = pairs.Draw(1, split, i, kAny);
        const std::string number = std::to_string(i);
        EXPECT_EQ(TextOf(codec, pair.source), name + " file " + number);
        EXPECT_EQ(TextOf(codec, pair.target), name + " läßt " + number + " – " + number);
      }
    }
    const auto read = [&](auto& in) { return nlohmann::json::parse(in); };
    std::ifstream in(corpus_ / "manifest.json");
    const nlohmann::json manifest = read(in);
    EXPECT_EQ(manifest["pairs"], nlohmann::json({{"source", "en"}, {"target", "de"}}));
    EXPECT_EQ(manifest["files"][0]["path"], "a.train");
    EXPECT_EQ(manifest["files"][0]["pairs"], 30);
  }
  // The other way round.
  PrepareOptions options = Options();
  options.pairs = Sides{"de", "en"};
  EXPECT_TRUE(PrepareCorpus(options).made);
  TextCodec bytes({});
  const TextPairs back(corpus_.string(), kBytes);
  EXPECT_EQ(TextOf(bytes, back.Draw(1, Split::kTest, 7, kAny).target), "c.test file 7");
}

TEST_F(PairsTest, FoldersMayBeHeldOutAndNamesWithoutAPartFollowTheHash) {
  WriteParts();
  PrepareOptions options = Options();
  fs::rename(files_, folder_.Path() / "train");
  for (const char* part : {"validation", "test"}) {
    Write(std::string(part) + "/of.train.en", std::string(part) + "\n");
    Write(std::string(part) + "/of.train.de", std::string(part) + "\n");
  }
  fs::rename(folder_.Path() / "train", files_ / "train");
  options.held_out = {{"validation", Split::kValidation}, {"test", Split::kTest}};
  Prepared made = PrepareCorpus(options);
  EXPECT_EQ(std::vector<std::int64_t>(made.pairs, made.pairs + 3),
            (std::vector<std::int64_t>{90, 1, 1}));

  options = Options();
  options.folder = folder_.Path() / "hashed";
  fs::remove_all(files_);
  for (int i = 0; i < 120; ++i) {
    Write("file" + std::to_string(i) + ".en", "one\n");
    Write("file" + std::to_string(i) + ".de", "eins\n");
  }
  made = PrepareCorpus(options);
  EXPECT_EQ(made.pairs[0] + made.pairs[1] + made.pairs[2], 120);
  EXPECT_GT(made.pairs[0], 90);
}

TEST_F(PairsTest, SpacesAroundSentencesAndEmptyLinesAreLeftOut) {
  WriteParts();
  Write("c.test.en", "\xc3\xa4 one \r\n\n \t\r\nlast");
  Write("c.test.de", "eins\n\n\n  letzter\n");
  const Prepared made = PrepareCorpus(Options());
  EXPECT_EQ(made.pairs[2], 2);
  EXPECT_EQ(made.skipped, 2);
  TextCodec bytes({});
  const TextPairs pairs(corpus_.string(), kBytes);
  EXPECT_EQ(TextOf(bytes, pairs.Draw(1, Split::kTest, 0, kAny).source), "\xc3\xa4 one");
  EXPECT_EQ(TextOf(bytes, pairs.Draw(1, Split::kTest, 1, kAny).target), "letzter");
}

TEST_F(PairsTest, WhatDoesNotFitIsNamed) {
  WriteParts();
  const PrepareOptions options = Options();
  const auto broken = [&](const std::string& name, const std::string& text,
                          const std::string& why) {
    std::ifstream in(files_ / name, std::ios::binary);
    const std::string before((std::istreambuf_iterator<char>(in)),
                             std::istreambuf_iterator<char>());
    Write(name, text);
    ExpectContains(Error(options), why);
    EXPECT_FALSE(fs::exists(corpus_ / "manifest.json"));
    Write(name, before);
  };
  broken("c.test.de", "only one\n", "c.test.de: expected 30 lines, as ");
  broken("c.test.de", "only one\n", "c.test.en has, got 1");
  broken("b.valid.en", "one\ntwo\xff\n", "b.valid.en: line 2: expected UTF-8 text");
  broken("a.train.de", std::string(29, '\n') + "end",
         "a.train.de: line 1: expected a sentence, as ");
  broken("a.train.en", std::string(30, '\n'), "a.train.en: line 1: expected a sentence, as ");

  fs::remove(files_ / "b.valid.de");
  ExpectContains(Error(options),
                 "b.valid.en: expected its translation among the files, b.valid.de");
  fs::remove(files_ / "b.valid.en");
  ExpectContains(Error(options),
                 "pairs: of 2 files none fell to the part \"validation\"; a file says its part by "
                 "train, val (or dev) or test in the name");
  PrepareOptions other = options;
  other.inputs = {files_ / "a.train.en"};
  ExpectContains(Error(other), "a.train.en: expected its translation among the files, a.train.de");
  other.pairs = Sides{"en", "fr"};
  ExpectContains(Error(other), "a.train.en: expected its translation among the files, a.train.fr");
  other.inputs = {files_ / "a.train.de"};
  ExpectContains(Error(other),
                 "a.train.de: expected a name that ends in .en or .fr, as --pairs says");
  other.inputs = {files_};
  other.pairs = Sides{"fr", "it"};
  ExpectContains(Error(other), "pairs: expected files NAME.fr and NAME.it, found none");
}

TEST_F(PairsTest, TextThatRunsOnAndPairsAreToldApart) {
  WriteParts();
  PrepareCorpus(Options());
  const TextWindows windows(corpus_.string(), 8, kBytes);
  ExpectContains(UsageErrorOf([&] { windows.Opened(); }),
                 "expected text that runs on, got pairs of sentences, en and de");
  for (const std::int64_t vocabulary : {kBytes + 1, std::int64_t{4096}}) {
    const TextPairs pairs(corpus_.string(), vocabulary);
    ExpectContains(UsageErrorOf([&] { pairs.Opened(); }),
                   "its tokens are bytes; expected task.vocabulary 256, got");
  }
  PrepareOptions options = Options();
  options.pairs.reset();
  options.extension = ".de";
  for (int i = 0; i < 60; ++i) Write(std::to_string(i) + ".de", "Text");
  PrepareCorpus(options);
  const TextPairs pairs(corpus_.string(), kBytes);
  ExpectContains(UsageErrorOf([&] { pairs.Opened(); }),
                 "expected pairs of sentences, which `tsallis data prepare");
  ExpectContains(UsageErrorOf([&] { TextPairs("./none", kBytes).Opened(); }),
                 "no corpus there; `tsallis data prepare none` makes it");
}

TEST_F(PairsTest, ADamagedCorpusIsRefused) {
  WriteParts();
  PrepareCorpus(Options());
  // The first token of the test part becomes an end: a pair without a separator.
  std::fstream part(corpus_ / "test.bin", std::ios::in | std::ios::out | std::ios::binary);
  part.seekp(1024);
  part.write("\x02\x01", 2);  // 258
  part.close();
  const TextPairs pairs(corpus_.string(), kBytes);
  ExpectContains(UsageErrorOf([&] { pairs.Opened(); }),
                 "its test part is no row of pairs at token 0");
  std::ofstream(corpus_ / "manifest.json") << R"({"files": [], "pairs": ["en", "de"]})";
  ExpectContains(UsageErrorOf([&] { Corpus corpus(corpus_); }),
                 "expected \"pairs\" with \"source\" and \"target\", got [\"en\",\"de\"]");
}

}  // namespace
}  // namespace tsallis::lab
