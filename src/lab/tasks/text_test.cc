#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <numeric>
#include <regex>
#include <set>
#include <string>

#include "lab/base/errors.h"
#include "lab/tasks/sequence_batch.h"
#include "lab/tasks/sequence_tasks.h"
#include "lab/testing/lab_test_support.h"
#include "lab/text/corpus.h"
#include "lab/text/prepare.h"
#include "lab/text/tokenizer.h"

namespace tsallis::lab {
namespace {

namespace fs = std::filesystem;

void Write(const fs::path& path, const std::string& text) {
  fs::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << text;
}

// A file whose text says at every byte where it stands.
std::string Numbered(const std::string& name, std::int64_t bytes) {
  std::string text;
  for (int line = 0; static_cast<std::int64_t>(text.size()) < bytes; ++line) {
    text += name + " " + std::to_string(line) + "\n";
  }
  return text.substr(0, static_cast<std::size_t>(bytes));
}

std::string TextOf(const std::vector<std::int64_t>& tokens) {
  return {tokens.begin(), tokens.end()};
}

class TextTest : public testing::Test {
 protected:
  // 120 files of 40 to 159 bytes.
  void WriteFiles() {
    for (int i = 0; i < 120; ++i) {
      const std::string name = "file" + std::to_string(i);
      Write(files_ / (i % 2 == 0 ? "a" : "b") / (name + ".txt"), Numbered(name, 40 + i));
    }
  }
  PrepareOptions Options() {
    PrepareOptions options;
    options.name = "numbers";
    options.inputs = {files_};
    options.extension = ".txt";
    options.folder = corpus_;
    return options;
  }

  TemporaryFolder folder_;
  fs::path files_ = folder_.Path() / "files";
  fs::path corpus_ = folder_.Path() / "corpus";
};

TEST_F(TextTest, FindsTheFirstByteThatIsNoText) {
  EXPECT_EQ(FirstBadByte(""), -1);
  EXPECT_EQ(FirstBadByte("plain, \xc3\xa4, \xe2\x82\xac, \xf0\x9f\x99\x82"), -1);
  for (const std::string& bad :
       {std::string("\x80"), std::string("\xc3"), std::string("\xc0\xaf"),
        std::string("\xe0\x80\x80"), std::string("\xed\xa0\x80"), std::string("\xf4\x90\x80\x80"),
        std::string("\xe2\x82"), std::string("\xff"), std::string(1, '\0')}) {
    EXPECT_EQ(FirstBadByte("ab" + bad), 2) << testing::PrintToString(bad);
    EXPECT_EQ(FirstBadByte("ab" + bad + "cdef"), 2) << testing::PrintToString(bad);
  }
}

TEST_F(TextTest, AFileIsInOnePartWholeAndTheSameWhereverItsFolderIs) {
  WriteFiles();
  const Prepared made = PrepareCorpus(Options());
  EXPECT_TRUE(made.made);
  EXPECT_EQ(made.files, 120);
  EXPECT_FALSE(PrepareCorpus(Options()).made) << "it is there already";
  const Corpus corpus(corpus_);
  std::set<std::string> found;
  std::int64_t all = 0;
  for (const Split split : {Split::kTrain, Split::kValidation, Split::kTest}) {
    const Corpus::Part& part = corpus.Of(split);
    std::int64_t begin = 0;
    for (const std::int64_t tokens : part.Documents()) {
      const std::string text = TextOf(part.Read(begin, tokens));
      const std::string name = text.substr(0, text.find(' '));
      EXPECT_EQ(text, Numbered(name, tokens));
      EXPECT_TRUE(found.insert(name).second) << name;
      begin += tokens;
    }
    EXPECT_EQ(begin, part.size());
    all += begin;
  }
  EXPECT_EQ(found.size(), 120U);
  EXPECT_EQ(all, made.tokens[0] + made.tokens[1] + made.tokens[2]);

  fs::rename(files_, folder_.Path() / "elsewhere");
  PrepareOptions moved = Options();
  moved.inputs = {folder_.Path() / "elsewhere"};
  EXPECT_FALSE(PrepareCorpus(moved).made);

  moved.folder = folder_.Path() / "again";
  ASSERT_TRUE(PrepareCorpus(moved).made);
  EXPECT_EQ(Corpus(moved.folder).Checksum(), corpus.Checksum());
  EXPECT_EQ(corpus.Checksum().size(), 8U);
  Write(folder_.Path() / "elsewhere" / "a" / "file0.txt", Numbered("file0", 41));
  moved.folder = folder_.Path() / "other";
  ASSERT_TRUE(PrepareCorpus(moved).made);
  EXPECT_NE(Corpus(moved.folder).Checksum(), corpus.Checksum());
}

TEST_F(TextTest, BadFilesAreNamedOrLeftOut) {
  WriteFiles();
  Write(files_ / "bad.txt", "good until\xff here");
  Write(files_ / "empty.txt", "");
  ExpectContains(UsageErrorOf([&] { PrepareCorpus(Options()); }),
                 "bad.txt: expected UTF-8 text, got something else at byte 10");
  EXPECT_FALSE(fs::exists(corpus_ / "manifest.json"));
  PrepareOptions options = Options();
  options.skip_bad = true;
  const Prepared made = PrepareCorpus(options);
  EXPECT_EQ(made.files, 120);
  EXPECT_EQ(made.skipped, 2);

  options.inputs = {files_ / "nothing"};
  ExpectContains(UsageErrorOf([&] { PrepareCorpus(options); }), "no such file or folder");
  options.inputs = {files_ / "a" / "file0.txt"};
  ExpectContains(UsageErrorOf([&] { PrepareCorpus(options); }),
                 "numbers: of 1 files none fell to the part");
  EXPECT_THROW(PrepareCorpus(Options(), [](std::int64_t, std::int64_t) { return false; }),
               Interrupted);
}

TEST_F(TextTest, ACorpusThatIsDamagedIsRefused) {
  ExpectContains(UsageErrorOf([&] { Corpus corpus(corpus_); }),
                 "no corpus there; `tsallis data prepare corpus` makes it");
  WriteFiles();
  PrepareCorpus(Options());
  const fs::path shard = corpus_ / "test.bin";
  const auto size = fs::file_size(shard);
  fs::resize_file(shard, size - 2);
  ExpectContains(UsageErrorOf([&] { Corpus corpus(corpus_); }), "tokens as its header says, got");
  fs::resize_file(shard, 100);
  ExpectContains(UsageErrorOf([&] { Corpus corpus(corpus_); }),
                 "expected tokens behind a header of 1024 bytes, got 100 bytes");
  fs::resize_file(shard, size);
  std::fstream(shard, std::ios::in | std::ios::out | std::ios::binary) << "x";
  ExpectContains(UsageErrorOf([&] { Corpus corpus(corpus_); }), "expected a header that begins");
  EXPECT_TRUE(PrepareCorpus(Options()).made) << "what is damaged is made again";
  EXPECT_NO_THROW(Corpus corpus(corpus_));
  Write(corpus_ / "manifest.json", "[1]");
  ExpectContains(UsageErrorOf([&] { Corpus corpus(corpus_); }), "the list \"files\"");
}

// A text as it is shown while its tokens come.
std::string Streamed(TextCodec& codec, const std::string& text) {
  TextStream stream(codec);
  std::string shown;
  for (const std::uint32_t token : codec.Encode(text, "text")) {
    const std::string added = stream.Push(token);
    EXPECT_EQ(SettledBytes(added), added.size()) << "no part of a character is shown";
    shown += added;
    EXPECT_EQ(text.substr(0, shown.size()), shown);
  }
  return shown + stream.End();
}

TEST_F(TextTest, TokensMayBeThoseOfATokenizer) {
  WriteFiles();
  PrepareOptions options = Options();
  options.tokenizer = "bpe:300";
  std::int64_t all = 0, halfway = 0;
  const Prepared made = PrepareCorpus(options, [&](std::int64_t done, std::int64_t bytes) {
    all = bytes;
    halfway += 2 * done == bytes;
    return done <= bytes;
  });
  EXPECT_TRUE(made.made);
  EXPECT_GE(halfway, 2) << "asked while the tokenizer is trained, and before the first text";
  EXPECT_TRUE(fs::exists(corpus_ / "tokenizer.json"));
  EXPECT_FALSE(fs::exists(corpus_ / "tokenizer.json.tmp"));
  EXPECT_FALSE(PrepareCorpus(options).made) << "training gives the same again";
  const Corpus corpus(corpus_);
  EXPECT_EQ(corpus.Vocabulary(), 300);
  std::int64_t bytes = 0;
  for (const Split split : {Split::kTrain, Split::kValidation, Split::kTest}) {
    EXPECT_GT(corpus.BytesPerToken(split), 1.3);
    bytes +=
        std::llround(corpus.BytesPerToken(split) * static_cast<double>(corpus.Of(split).size()));
  }
  EXPECT_EQ(2 * bytes, all);
  // A text that is encoded in parts has the tokens of one that is encoded alone.
  Tokenizer tokenizer(corpus_ / "tokenizer.json");
  EXPECT_EQ(tokenizer.Vocabulary(), 300);
  const Corpus::Part& part = corpus.Of(Split::kTrain);
  const std::vector<std::int64_t> read = part.Read(0, part.Documents()[0]);
  const std::vector<std::uint32_t> first(read.begin(), read.end());
  EXPECT_EQ(tokenizer.Encode(Numbered("file0", 40)), first) << "a/file0.txt is in train";
  EXPECT_TRUE(tokenizer.Encode("").empty());
  EXPECT_EQ(tokenizer.Decode(first), Numbered("file0", 40));
  EXPECT_EQ(tokenizer.Decode({}), "");
  TextCodec codec(corpus_ / "tokenizer.json");
  const std::string words = "file0 läßt – \U0001f600 and  more\n" + Numbered("file0", 40);
  EXPECT_EQ(Streamed(codec, words), words);

  const std::string name = "corpus=" + corpus_.string();
  const TaskPointer task = MakeSequenceTask("text", {name, "vocabulary=320", "chunk=8"});
  EXPECT_EQ(task->Vocabulary(), 320);
  EXPECT_EQ(task->GetMetric().unit, "nats a token");
  EXPECT_LT(task->Draw(1, Split::kTest, 0, 8).tokens[0], 300);
  for (const char* vocabulary : {"vocabulary=256", "vocabulary=299"}) {
    const TaskPointer refused = MakeSequenceTask("text", {name, vocabulary, "chunk=8"});
    ExpectContains(UsageErrorOf([&] { refused->Draw(1, Split::kTest, 0, 8); }),
                   "its tokens are tokenizer.json's; expected task.vocabulary 300, got");
  }
  // A file is read with what made the tokens of training.
  const TaskPointer file = MakeFileText(files_ / "a" / "file0.txt", *task);
  EXPECT_EQ(file->Available(Split::kTest, 1), static_cast<std::int64_t>(first.size()) - 1);
  EXPECT_EQ(file->Draw(1, Split::kTest, 0, 3).tokens,
            std::vector<std::int64_t>(first.begin(), first.begin() + 3));
  EXPECT_DOUBLE_EQ(file->BytesPerToken(Split::kTest), 40.0 / static_cast<double>(first.size()));

  options.folder = folder_.Path() / "other";
  const auto until_trained = [](std::int64_t done, std::int64_t total) { return 2 * done < total; };
  EXPECT_THROW(PrepareCorpus(options, until_trained), Interrupted);
  EXPECT_FALSE(fs::exists(options.folder / "tokenizer.json.tmp"));
  for (const auto& [tokenizer_name, why] : std::map<std::string, std::string>{
           {"bpe:256", "expected bpe:SIZE with a size of 257 to 65536"},
           {"bpe:", "expected bpe:SIZE"},
           {(files_ / "a" / "file0.txt").string(), "file0.txt: expected a tokenizer.json"},
           {(folder_.Path() / "no.model").string(), "no.model: no such file"}}) {
    options.tokenizer = tokenizer_name;
    ExpectContains(UsageErrorOf([&] { PrepareCorpus(options); }), why);
    EXPECT_FALSE(fs::exists(options.folder / "manifest.json"));
  }
}

TEST(TextCodec, SaysHowMuchOfATextIsSettled) {
  EXPECT_EQ(SettledBytes(""), 0U);
  EXPECT_EQ(SettledBytes("abc"), 3U);
  const std::string text = "a\u00e4\u2013\U0001f600";  // of 1, 2, 3 and 4 bytes
  const std::size_t ends[] = {0, 1, 1, 3, 3, 3, 6, 6, 6, 6, 10};
  for (std::size_t i = 0; i <= text.size(); ++i) {
    EXPECT_EQ(SettledBytes(text.substr(0, i)), ends[i]) << i;
  }
  EXPECT_EQ(SettledBytes("a\uFFFD"), 1U);           // a tokenizer's beginning of a character
  EXPECT_EQ(SettledBytes("\x80\x80\x80\x80"), 4U);  // no text, and never will be
  TextCodec bytes({});
  EXPECT_EQ(bytes.Decode(bytes.Encode(text, "text")), text);
  EXPECT_EQ(Streamed(bytes, text + "abc" + text), text + "abc" + text);
  EXPECT_EQ(Streamed(bytes, text.substr(0, 8)), text.substr(0, 8))
      << "the rest is shown at the end";
}

// The text of a part, as bytes.
std::string AllOf(const Corpus& corpus, Split split) {
  const Corpus::Part& part = corpus.Of(split);
  return TextOf(part.Read(0, part.size()));
}

TEST_F(TextTest, APartMayHaveSeveralShards) {
  WriteFiles();
  PrepareCorpus(Options());
  const Corpus whole(corpus_);
  PrepareOptions options = Options();
  options.folder = folder_.Path() / "shards";
  options.shard_tokens = 1000;
  EXPECT_TRUE(PrepareCorpus(options).made);
  EXPECT_FALSE(PrepareCorpus(options).made);
  EXPECT_TRUE(fs::exists(options.folder / "train_000009.bin"));
  EXPECT_FALSE(fs::exists(options.folder / "train.bin"));
  const Corpus corpus(options.folder);
  for (const Split split : {Split::kTrain, Split::kValidation, Split::kTest}) {
    EXPECT_EQ(AllOf(corpus, split), AllOf(whole, split));
  }
  // A piece that lies in three of them.
  EXPECT_EQ(corpus.Of(Split::kTrain).Read(900, 1500), whole.Of(Split::kTrain).Read(900, 1500));
  // Files of the earlier corpus are removed.
  options.shard_tokens = 1 << 20;
  EXPECT_TRUE(PrepareCorpus(options).made);
  EXPECT_FALSE(fs::exists(options.folder / "train_000001.bin"));
  EXPECT_TRUE(fs::exists(options.folder / "train.bin"));
}

TEST_F(TextTest, ATopFolderMayBeHeldOut) {
  WriteFiles();
  for (int i = 0; i < 3; ++i) Write(files_ / "c" / (std::to_string(i) + ".txt"), "held");
  PrepareOptions options = Options();
  options.held_out = {{"b", Split::kValidation}, {"c", Split::kTest}};
  PrepareCorpus(options);
  const Corpus corpus(corpus_);
  EXPECT_EQ(AllOf(corpus, Split::kTest), "heldheldheld");
  EXPECT_EQ(corpus.Of(Split::kValidation).Documents().size(), 60U);
  EXPECT_EQ(corpus.Of(Split::kTrain).Documents().size(), 60U);
}

// Writes shards in the format of llm.c.
void WriteShard(const fs::path& path, bool wide, const std::vector<std::uint32_t>& tokens) {
  std::vector<std::int32_t> header(256);
  header[0] = wide ? 20240801 : 20240520;
  header[1] = wide ? 7 : 1;
  header[2] = tokens.size();
  std::ofstream out(path, std::ios::binary);
  out.write(reinterpret_cast<const char*>(header.data()), 1024);
  const std::vector<std::uint16_t> narrow(tokens.begin(), tokens.end());
  const auto count = static_cast<std::streamsize>(tokens.size());
  if (wide) out.write(reinterpret_cast<const char*>(tokens.data()), 4 * count);
  if (!wide) out.write(reinterpret_cast<const char*>(narrow.data()), 2 * count);
}

std::vector<std::uint32_t> Counting(std::uint32_t first, std::size_t count) {
  std::vector<std::uint32_t> tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

TEST_F(TextTest, ShardsOfOthersAreReadWhereTheyLie) {
  fs::create_directories(files_);
  WriteShard(files_ / "web_train_000001.bin", false, Counting(0, 900));
  WriteShard(files_ / "web_train_000002.bin", true, Counting(100000, 300));
  WriteShard(files_ / "web_val_000000.bin", true, Counting(500, 100));
  PrepareOptions options;
  options.name = "web";
  options.inputs = {files_};
  options.folder = corpus_;
  const Prepared made = PrepareCorpus(options);
  EXPECT_TRUE(made.made);
  EXPECT_FALSE(PrepareCorpus(options).made);
  EXPECT_EQ(made.tokens[0], 1200);
  const Corpus corpus(corpus_);
  EXPECT_EQ(corpus.Vocabulary(), 100300);
  EXPECT_FALSE(corpus.IsBytes());
  EXPECT_EQ(corpus.BytesPerToken(Split::kTest), 0.0);
  EXPECT_EQ(corpus.Of(Split::kTrain).Read(898, 4),
            (std::vector<std::int64_t>{898, 899, 100000, 100001}));
  EXPECT_EQ(corpus.Of(Split::kTest).Read(0, 2), corpus.Of(Split::kValidation).Read(0, 2));
  const std::string name = "corpus=" + corpus_.string();
  const TaskPointer task = MakeSequenceTask("text", {name, "vocabulary=100352", "chunk=16"});
  EXPECT_EQ(task->Draw(1, Split::kTest, 1, 16).tokens[0], 516);
  Write(folder_.Path() / "one.txt", "abc");
  ExpectContains(UsageErrorOf([&] { MakeFileText(folder_.Path() / "one.txt", *task); }),
                 "made of shards without their tokenizer");

  options.tokenizer = "bpe:400";
  ExpectContains(UsageErrorOf([&] { PrepareCorpus(options); }), "shards are tokens already");
  options.tokenizer.clear();
  EXPECT_THROW(PrepareCorpus(options, [](std::int64_t, std::int64_t) { return false; }),
               Interrupted);
  WriteShard(files_ / "web_more.bin", false, Counting(0, 10));
  ExpectContains(UsageErrorOf([&] { PrepareCorpus(options); }),
                 "web_more.bin: expected a shard with train, val (or dev) or test in the name");
  fs::remove(files_ / "web_more.bin");
  Write(files_ / "notes.txt", "text");
  ExpectContains(UsageErrorOf([&] { PrepareCorpus(options); }),
                 "notes.txt: expected a shard (.bin)");
}

TEST_F(TextTest, FilesThatWereNotMadeByItStay) {
  const auto asides = [&] {
    int count = 0;
    for (const auto& entry : fs::directory_iterator(corpus_)) {
      count += entry.path().extension() == ".tmp" ? 1 : 0;
    }
    return count;
  };
  fs::create_directories(corpus_);
  WriteShard(corpus_ / "train.bin", false, Counting(0, 900));
  WriteShard(corpus_ / "val.bin", false, Counting(0, 100));
  PrepareOptions shards;
  shards.name = "web";
  shards.inputs = {corpus_ / "train.bin", corpus_ / "val.bin"};
  shards.folder = corpus_;
  EXPECT_TRUE(PrepareCorpus(shards).made);
  EXPECT_TRUE(fs::exists(corpus_ / "train.bin"));
  EXPECT_EQ(Corpus(corpus_).Of(Split::kTrain).size(), 900);
  // A corpus of text would have files of that name.
  WriteFiles();
  for (const bool has_manifest : {true, false}) {
    if (!has_manifest) fs::remove(corpus_ / "manifest.json");
    ExpectContains(UsageErrorOf([&] { PrepareCorpus(Options()); }),
                   "train.bin: would be written over");
    EXPECT_EQ(Shard(corpus_ / "train.bin").size(), 900);
    EXPECT_EQ(asides(), 0);
  }
  fs::remove(corpus_ / "train.bin");
  EXPECT_TRUE(PrepareCorpus(Options()).made);
  // A process that was killed while it put its files into their places.
  fs::rename(corpus_ / "manifest.json", corpus_ / "manifest.json.new");
  EXPECT_TRUE(PrepareCorpus(Options()).made);
  EXPECT_FALSE(fs::exists(corpus_ / "manifest.json.new"));
  // Files that it made itself stay where they are read from.
  shards.inputs = {corpus_ / "train.bin", corpus_ / "test.bin"};
  EXPECT_TRUE(PrepareCorpus(shards).made);
  EXPECT_TRUE(fs::exists(corpus_ / "train.bin"));
  EXPECT_FALSE(fs::exists(corpus_ / "validation.bin"));
  // Nor is anything left of a refusal.
  Write(files_ / "bad.txt", "\xff");
  PrepareOptions again = Options();
  again.folder = folder_.Path() / "again";
  ExpectContains(UsageErrorOf([&] { PrepareCorpus(again); }), "expected UTF-8");
  EXPECT_TRUE(fs::is_empty(again.folder));
}

TEST_F(TextTest, AFileIsReadInWindowsOfAnyLength) {
  Write(files_ / "one.txt", "abcdefghij");
  Write(files_ / "short.txt", "a");
  const TaskPointer copy = MakeSequenceTask("copy");
  const TaskPointer file = MakeFileText(files_ / "one.txt", *copy);
  EXPECT_EQ(file->Vocabulary(), 256);
  EXPECT_EQ(file->Available(Split::kTest, 3), 3);
  EXPECT_EQ(file->Available(Split::kTest, 9), 1);
  const Sample sample = file->Draw(1, Split::kTest, 2, 3);
  EXPECT_EQ(sample.tokens, (std::vector<std::int64_t>{'g', 'h', 'i'}));
  EXPECT_EQ(sample.labels, (std::vector<std::int64_t>{'h', 'i', 'j'}));
  ExpectContains(UsageErrorOf([&] { file->CheckLength(10); }), "expected 1 to 9, as ");
  ExpectContains(UsageErrorOf([&] { MakeFileText(files_ / "short.txt", *copy); }),
                 "short.txt: expected at least 2 tokens, got 1");
  ExpectContains(UsageErrorOf([&] { MakeFileText(files_ / "none.txt", *copy); }), "cannot be read");
}

TEST_F(TextTest, WindowsOfEveryLengthReadTheSameTokensOfLongDocuments) {
  WriteFiles();
  PrepareCorpus(Options());
  const TaskPointer task = MakeSequenceTask("text", {"corpus=" + corpus_.string(), "chunk=32"});
  EXPECT_EQ(task->Vocabulary(), 256);
  EXPECT_EQ(task->GetMetric().unit, "nats a byte");
  EXPECT_FALSE(task->GetMetric().higher_is_better);
  std::map<std::int64_t, std::string> read;
  for (const std::int64_t n : {8, 16, 32}) {
    for (std::int64_t i = 0; i < 64 / n; ++i) {
      const Sample sample = task->Draw(1, Split::kTest, i, n);
      ASSERT_EQ(sample.tokens.size(), static_cast<std::size_t>(n));
      read[n] += TextOf(sample.tokens);
      EXPECT_TRUE(
          std::equal(sample.tokens.begin() + 1, sample.tokens.end(), sample.labels.begin()));
    }
  }
  EXPECT_EQ(read[8], read[16]);
  EXPECT_EQ(read[8], read[32]);
  // The first chunks of two documents, not the first two of one.
  EXPECT_NE(read[8].substr(0, 5), read[8].substr(32, 5) + "x");
  EXPECT_EQ(read[8].substr(0, 4), "file");
  EXPECT_EQ(read[8].substr(32, 4), "file");

  std::set<std::vector<std::int64_t>> drawn;
  for (std::int64_t i = 0; i < 20; ++i) drawn.insert(task->Draw(1, Split::kTrain, i, 16).tokens);
  EXPECT_GE(drawn.size(), 18U);
  EXPECT_EQ(task->Draw(1, Split::kTrain, 3, 16).tokens, task->Draw(1, Split::kTrain, 3, 16).tokens);
  ExpectContains(UsageErrorOf([&] { task->Draw(1, Split::kTest, 0, 33); }),
                 "length: expected 1 to 32, the task's chunk, got 33");
  ExpectContains(UsageErrorOf([&] { task->Draw(1, Split::kTest, 10000, 32); }), "windows of 32");
}

// The answer that a sample scores, and what it reads before the question.
std::string Scored(const Sample& sample) {
  std::vector<std::int64_t> scored = sample.labels;
  std::erase(scored, kNotScored);
  return TextOf(scored);
}

TEST_F(TextTest, NeedlesAreAskedForInTheOrderInWhichTheyStand) {
  WriteFiles();
  PrepareCorpus(Options());
  const std::string corpus = "corpus=" + corpus_.string();
  // Test documents of more than `chunk` bytes: the hay of 400 tokens would not fit into them.
  const TaskPointer task = MakeSequenceTask("needle", {corpus, "chunk=400", "digits=4"});
  EXPECT_EQ(task->GetScoring(), Scoring::kExact);
  const std::regex needle("\nThe special magic ([a-z]+) number is ([1-9][0-9]{3})\\.\n");
  std::set<std::string> cities;
  std::set<std::size_t> places;
  for (std::int64_t i = 0; i < 60; ++i) {
    const Sample sample = task->Draw(3, Split::kTrain, i, 300);
    ASSERT_EQ(sample.tokens.size(), 300U);
    const std::string text = TextOf(sample.tokens);
    std::string expected;
    for (std::sregex_iterator at(text.begin(), text.end(), needle), end; at != end; ++at) {
      expected +=
          fmt::format("{}{}={}", expected.empty() ? "" : ";", (*at)[1].str(), (*at)[2].str());
      cities.insert((*at)[1]);
      places.insert(static_cast<std::size_t>(at->position()));
    }
    EXPECT_EQ(std::count(expected.begin(), expected.end(), ';'), 2) << text;
    EXPECT_EQ(Scored(sample), expected);
    // The labels are what follows.
    EXPECT_TRUE(text.ends_with("\n" + expected.substr(0, expected.size() - 1))) << text;
    EXPECT_EQ(TextOf(task->Draw(3, Split::kTrain, i, 300).tokens), text);
  }
  EXPECT_GT(cities.size(), 50U);
  EXPECT_GT(places.size(), 100U);
  ExpectContains(UsageErrorOf([&] { task->CheckLength(150); }), "expected at least 1");
  ExpectContains(UsageErrorOf([&] { task->Draw(1, Split::kTest, 0, 300); }),
                 "its test part has 0 windows");
}

TEST_F(TextTest, ATestOfNeedlesScoresOneOfThem) {
  WriteFiles();
  for (int i = 0; i < 120; ++i) {
    Write(files_ / "long" / (std::to_string(i) + ".txt"), Numbered("long", 600));
  }
  PrepareCorpus(Options());
  const std::string corpus = "corpus=" + corpus_.string();
  const TaskPointer all = MakeSequenceTask("needle", {corpus, "chunk=512", "needles=2"});
  for (std::int64_t i = 0; i < 200; ++i) {  // more than there are windows
    const Sample sample = all->Draw(3, Split::kTest, i, 512);
    const std::string scored = Scored(sample);
    const std::size_t sign = scored.find('=');
    ASSERT_NE(sign, std::string::npos) << scored;
    EXPECT_EQ(scored.size() - sign, 8U);
    const std::string sentence =
        "magic " + scored.substr(0, sign) + " number is " + scored.substr(sign + 1) + ".";
    const std::string text = TextOf(sample.tokens);
    const std::size_t at = text.find(sentence);
    ASSERT_NE(at, std::string::npos);
    // The first of an even sample, the second of an odd one.
    EXPECT_EQ(text.find("The special magic") + 4 + 8 == at, i % 2 == 0) << text;
  }
  const TaskPointer one =
      MakeSequenceTask("needle", {corpus, "chunk=512", "needles=4", "question=one"});
  for (std::int64_t i = 0; i < 20; ++i) {
    const Sample sample = one->Draw(3, Split::kTest, i, 512);
    const std::string number = Scored(sample);
    EXPECT_EQ(number.size(), 7U);
    const std::string text = TextOf(sample.tokens);
    const std::size_t question = text.rfind("The special magic ");
    EXPECT_NE(text.find(text.substr(question, text.size() - question - 6) + number + ".\n"),
              std::string::npos)
        << text;
  }
}

}  // namespace
}  // namespace tsallis::lab
