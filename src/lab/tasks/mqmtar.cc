// T8, multi-query multi-token associative recall (Vasylenko et al. 2025, appendix G.1): pairs
// of a key and a value of two tokens each, some space between them, then queries; the target
// repeats the value of every key asked for.
//
//   source   [space] k k 1 v v 0 [space] ...  2 k k 2 k k 2 k k 2 k k      0: space, 1: key | value
//   target   2 v v 2 v v 2 v v 2 v v                                       2: query
//
// P = floor(0.8 length / 6) pairs, each in a field of floor(length / P) tokens; the space left in a
// field is shared out before and behind the pair at random. Keys of a sample are distinct, values
// too; queries may repeat.
//
// Two defects of the published generator are not here. It draws its list of 10 000 key words and
// value words anew for every file, so that what was learnt about words in training does not hold in
// the test: here one list, from a seed of its own, serves all splits and runs. And it spaces the
// pairs by a generator that nobody seeds: here all of a sample follows from its index. (The paper
// speaks of 100 000 words; with 256 symbols there are 65 536 of two tokens, and the code has 10
// 000.)
#include <algorithm>
#include <numeric>

#include "lab/tasks/sequence_tasks.h"

namespace tsallis::lab {
namespace {

constexpr std::int64_t kSpace = 0, kKeyEnd = 1, kQuery = 2, kFirstSymbol = 3;
constexpr std::int64_t kPairTokens = 6;              // k k 1 v v 0
constexpr std::uint64_t kWordSeed = 0x6d716d746172;  // of the list of words, for all runs alike

// `count` distinct numbers below `bound` in random order: the head of a shuffle that is undone
// afterwards, so that a few of many cost no more than a few.
std::vector<std::int64_t> DrawDistinct(RandomStream& random, std::int64_t count,
                                       std::int64_t bound) {
  thread_local std::vector<std::int64_t> deck;
  if (static_cast<std::int64_t>(deck.size()) != bound) {
    deck.resize(bound);
    std::iota(deck.begin(), deck.end(), 0);
  }
  std::vector<std::int64_t> places(count);
  for (std::int64_t i = 0; i < count; ++i) {
    places[i] = i + random.Below(bound - i);
    std::swap(deck[i], deck[places[i]]);
  }
  std::vector<std::int64_t> drawn(deck.begin(), deck.begin() + count);
  for (std::int64_t i = count - 1; i >= 0; --i) std::swap(deck[i], deck[places[i]]);
  return drawn;
}

std::int64_t Pairs(std::int64_t length) { return length * 8 / (10 * kPairTokens); }
std::int64_t LongestFor(std::int64_t words) {
  return ((words + 1) * 10 * kPairTokens - 1) / 8;  // the last with Pairs(length) <= words
}

// The number of the field - 6 spaces that come before the pair. They are dealt without replacement
// from field - 1 places before it and field - 3 behind it, as the published code does.
std::int64_t SpaceBefore(RandomStream& random, std::int64_t field) {
  std::int64_t before = field - 1;
  std::int64_t behind = field - 3;
  for (std::int64_t i = kPairTokens; i < field; ++i) {
    --(random.Below(before + behind) < before ? before : behind);
  }
  return field - 1 - before;
}

std::string WordOf(std::int64_t token) {
  switch (token) {
    case kSpace: return "_";
    case kKeyEnd: return ":";
    case kQuery: return "?";
    default: return std::to_string(token - kFirstSymbol);
  }
}

}  // namespace

TaskPointer MakeMqmtar(TableReader& table) {
  std::int64_t symbols = 256;
  std::int64_t words = 10000;
  std::int64_t queries = 4;
  table.Optional("symbols", symbols, Within<std::int64_t>(2, 4096, "2 to 4096 symbols"));
  table.Optional("words", words, Positive<std::int64_t>());
  table.Optional("queries", queries, Within<std::int64_t>(1, 1 << 16, "1 to 65536 queries"));
  if (words > symbols * symbols) {
    table.Problem("words", "there are only " + std::to_string(symbols * symbols) +
                               " words of two of the " + std::to_string(symbols) + " symbols");
    words = symbols * symbols;
  }
  RandomStream drawn(kWordSeed, Purpose::kWords, 0);
  // [words], each below symbols^2: two tokens.
  const std::vector<std::int64_t> all_keys = DrawDistinct(drawn, words, symbols * symbols);
  const std::vector<std::int64_t> all_values = DrawDistinct(drawn, words, symbols * symbols);
  const auto add_word = [=](std::int64_t word, std::vector<std::int64_t>& tokens) {
    tokens.push_back(kFirstSymbol + word / symbols);
    tokens.push_back(kFirstSymbol + word % symbols);
  };
  const auto fill = [=](RandomStream& random, std::int64_t length) {
    const std::int64_t pairs = Pairs(length);
    const std::int64_t field = length / pairs;
    const std::vector<std::int64_t> keys = DrawDistinct(random, pairs, words);
    const std::vector<std::int64_t> values = DrawDistinct(random, pairs, words);
    Text text;
    text.source.reserve(pairs * field + 3 * queries);
    for (std::int64_t i = 0; i < pairs; ++i) {
      const std::int64_t space = field - kPairTokens;
      const std::int64_t before = SpaceBefore(random, field);
      text.source.insert(text.source.end(), before, kSpace);
      add_word(all_keys[keys[i]], text.source);
      text.source.push_back(kKeyEnd);
      add_word(all_values[values[i]], text.source);
      text.source.insert(text.source.end(), 1 + space - before, kSpace);
    }
    for (std::int64_t i = 0; i < queries; ++i) {
      const std::int64_t pair = random.Below(pairs);
      text.source.push_back(kQuery);
      add_word(all_keys[keys[pair]], text.source);
      text.target.push_back(kQuery);
      add_word(all_values[values[pair]], text.target);
    }
    return text;
  };
  return std::make_unique<GeneratedTask>(
      Generator{.data_tokens = kFirstSymbol + symbols,
                .shortest = 8,
                .longest = std::min(Generator::kLongest, LongestFor(words)),
                .fill = fill,
                .word = WordOf});
}

}  // namespace tsallis::lab
