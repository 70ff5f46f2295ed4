// Needles in a haystack (docs/definitions.md, T11): sentences "The special magic CITY number is
// NUMBER." stand as lines of their own at uniform random places of real text, and the model is
// asked for the numbers. A sample of length n is n bytes.
//
// question = "all" (Anson et al. 2025, appendix G.2): behind the text and a newline follows
// "city=number;city=number;city=number", in the order in which the needles stand. Training scores
// all of it; validation and test score one needle of every sample, the first of sample 0, the
// second of sample 1, ..., given those before it: a sample is right if city and number are. The
// paper generates the whole answer and reads the same share off it.
//
// question = "one" (single and multi-key needles of RULER, Hsieh et al. 2024): "The special magic
// CITY number is " follows, of one of the needles, and the number is scored.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lab/base/errors.h"
#include "lab/tasks/sequence_tasks.h"
#include "lab/text/windows.h"

namespace tsallis::lab {
namespace {

constexpr std::array<const char*, 100> kCities = {
    "accra",    "algiers",  "amman",    "amsterdam", "ankara",   "antwerp",  "athens",  "atlanta",
    "auckland", "austin",   "baghdad",  "baku",      "bangkok",  "basel",    "beijing", "beirut",
    "belgrade", "bergen",   "berlin",   "bern",      "bogota",   "bologna",  "boston",  "bremen",
    "brisbane", "brussels", "budapest", "busan",     "cairo",    "calgary",  "caracas", "chennai",
    "chicago",  "cologne",  "cordoba",  "dakar",     "dallas",   "damascus", "delhi",   "denver",
    "dhaka",    "dresden",  "dublin",   "durban",    "florence", "geneva",   "genoa",   "glasgow",
    "graz",     "hamburg",  "hanoi",    "harare",    "havana",   "helsinki", "houston", "istanbul",
    "jakarta",  "kabul",    "kampala",  "karachi",   "kigali",   "kyoto",    "lagos",   "lahore",
    "leipzig",  "lima",     "lisbon",   "london",    "lusaka",   "lyon",     "madrid",  "malaga",
    "manila",   "milan",    "minsk",    "montreal",  "moscow",   "mumbai",   "munich",  "nairobi",
    "naples",   "osaka",    "oslo",     "ottawa",    "paris",    "porto",    "prague",  "quito",
    "riga",     "rome",     "santiago", "seoul",     "seville",  "sofia",    "tallinn", "tehran",
    "tokyo",    "toronto",  "vienna",   "warsaw"};
constexpr std::size_t kLongestCity = 9;

struct NeedleConfig {
  std::string corpus = "python";
  std::int64_t chunk = 32768;
  std::int64_t needles = 3;
  std::int64_t digits = 7;
  std::string question = "all";
};

struct Needle {
  std::string city, number;
  std::string Sentence() const {
    return fmt::format("\nThe special magic {} number is {}.\n", city, number);
  }
};

class NeedleTask : public SequenceTask {
 public:
  explicit NeedleTask(const NeedleConfig& config)
      : config_(config), windows_(config.corpus, config.chunk, kBytes) {}

  std::int64_t Vocabulary() const override { return kBytes; }
  std::int64_t Pad() const override { return 0; }
  Scoring GetScoring() const override { return Scoring::kExact; }
  std::string CorpusChecksum() const override { return windows_.Opened().Checksum(); }

  void CheckLength(std::int64_t length) const override {
    windows_.CheckLength(length);
    const Needle longest{std::string(kLongestCity, 'x'), std::string(config_.digits, '0')};
    const std::vector<Needle> needles(config_.needles, longest);
    std::int64_t least = QuestionAndAnswer(needles, 0).text.size() + 1;
    for (const Needle& needle : needles) least += needle.Sentence().size();
    if (length >= least) return;
    throw UsageError(
        fmt::format("length: expected at least {}, which {} needles and their "
                    "question may take, got {}",
                    least, config_.needles, length));
  }

  Sample Draw(std::uint64_t seed, Split split, std::int64_t index,
              std::int64_t length) const override {
    CheckLength(length);
    RandomStream random(seed, PurposeOf(split), static_cast<std::uint64_t>(index));
    const std::vector<Needle> needles = DrawNeedles(random);
    const std::int64_t of =
        config_.question == "one" ? random.Below(config_.needles) : index % config_.needles;
    const Asked asked = QuestionAndAnswer(needles, of);
    std::int64_t hay = length + 1 - std::ssize(asked.text);
    for (const Needle& needle : needles) hay -= std::ssize(needle.Sentence());
    std::vector<std::int64_t> places(needles.size());
    for (std::int64_t& place : places) place = random.Below(hay + 1);
    std::sort(places.begin(), places.end());
    // The same text may hide other needles. A window has one token more than its length.
    const std::int64_t window =
        split == Split::kTrain ? index : index % windows_.Count(split, hay - 1);
    const std::vector<std::int64_t> text = windows_.Draw(random, split, window, hay - 1);

    std::vector<std::int64_t> tokens;
    const auto add = [&](const std::string& more) {
      for (const char c : more) tokens.push_back(static_cast<unsigned char>(c));
    };
    std::int64_t at = 0;
    for (std::size_t i = 0; i < needles.size(); ++i) {
      tokens.insert(tokens.end(), text.begin() + at, text.begin() + places[i]);
      at = places[i];
      add(needles[i].Sentence());
    }
    tokens.insert(tokens.end(), text.begin() + at, text.begin() + hay);
    const std::size_t before = tokens.size();
    add(asked.text);
    const bool all = split == Split::kTrain && config_.question == "all";
    const std::size_t begin = before + (all ? 1 : asked.begin);
    const std::size_t end = before + (all ? asked.text.size() : asked.end);
    Sample sample;
    sample.tokens.assign(tokens.begin(), tokens.end() - 1);
    sample.labels.assign(sample.tokens.size(), kNotScored);
    for (std::size_t i = begin; i < end; ++i) sample.labels[i - 1] = tokens[i];
    return sample;
  }

  std::string Word(std::int64_t token) const override { return ByteWord(token); }
  std::optional<TextCodec> Codec(const std::string&) const override { return TextCodec({}); }

 private:
  // The question behind the text, and its bytes [begin, end) that are scored.
  struct Asked {
    std::string text;
    std::size_t begin = 0, end = 0;
  };

  std::vector<Needle> DrawNeedles(RandomStream& random) const {
    std::vector<Needle> needles;
    while (std::ssize(needles) < config_.needles) {
      const std::string city = kCities[random.Below(kCities.size())];
      if (std::any_of(needles.begin(), needles.end(),
                      [&](const Needle& other) { return other.city == city; })) {
        continue;
      }
      Needle& needle = needles.emplace_back(Needle{city, ""});
      for (std::int64_t i = 0; i < config_.digits; ++i) {
        needle.number += static_cast<char>(i == 0 ? '1' + random.Below(9) : '0' + random.Below(10));
      }
    }
    return needles;
  }

  Asked QuestionAndAnswer(const std::vector<Needle>& needles, std::size_t of) const {
    Asked asked{.text = "\n"};
    if (config_.question == "one") {
      asked.text += fmt::format("The special magic {} number is ", needles[of].city);
      asked.begin = asked.text.size();
      asked.text += needles[of].number;
      asked.end = asked.text.size();
      return asked;
    }
    for (std::size_t i = 0; i < needles.size(); ++i) {
      if (i > 0) asked.text += ';';
      if (i == of) asked.begin = asked.text.size();
      asked.text += needles[i].city + '=' + needles[i].number;
      if (i == of) asked.end = asked.text.size();
    }
    return asked;
  }

  NeedleConfig config_;
  TextWindows windows_;
};

}  // namespace

TaskPointer MakeNeedle(TableReader& table) {
  NeedleConfig config;
  table.Optional("corpus", config.corpus);
  table.Optional("chunk", config.chunk, Within<std::int64_t>(1, 1 << 24, "1 to 2^24 tokens"));
  table.Optional("needles", config.needles, Within<std::int64_t>(1, 50, "1 to 50 needles"));
  table.Optional("digits", config.digits, Within<std::int64_t>(1, 18, "1 to 18 digits"));
  table.Optional("question", config.question, OneOf({"all", "one"}));
  return std::make_unique<NeedleTask>(config);
}

}  // namespace tsallis::lab
