#include "lab/nn/patterns.h"

#include <algorithm>
#include <iterator>

namespace tsallis::lab {
namespace {

// A number of a pattern: the kinds that it belongs to.
struct PatternNumber {
  const char* key;
  std::int64_t PatternConfig::*member;
  std::int64_t least;  // where it belongs
  std::vector<std::string> kinds;
};

const std::vector<PatternNumber>& Numbers() {
  static const std::vector<PatternNumber> numbers = {
      {"window", &PatternConfig::window, 1, {"window", "longformer", "bigbird"}},
      {"global_tokens", &PatternConfig::global_tokens, 1, {"global", "longformer", "bigbird"}},
      {"random", &PatternConfig::random, 1, {"random", "bigbird"}},
      {"random_block", &PatternConfig::random_block, 1, {"random", "bigbird"}},
      {"seed", &PatternConfig::seed, 0, {"random", "bigbird"}},
      {"stride", &PatternConfig::stride, 1, {"strided"}},
      {"segment", &PatternConfig::segment, 1, {"fixed"}},
      {"summary", &PatternConfig::summary, 0, {"fixed"}}};
  return numbers;
}

}  // namespace

const std::vector<CatalogueEntry>& Patterns() {
  static const std::vector<CatalogueEntry> entries = {
      {"none", "all tokens so far"},
      {"window", "the newest tokens"},
      {"global", "the first tokens"},
      {"random", "random blocks for every block of queries"},
      {"longformer", "a window and the first tokens"},
      {"bigbird", "a window, the first tokens and random blocks"},
      {"strided", "a window, and every token at a multiple of its length"},
      {"fixed", "the own segment, and the last tokens of every one"}};
  return entries;
}

PatternProblem CheckPattern(const PatternConfig& config) {
  const PatternConfig defaults;
  for (const PatternNumber& number : Numbers()) {
    const std::int64_t value = config.*number.member;
    const bool belongs =
        std::find(number.kinds.begin(), number.kinds.end(), config.kind) != number.kinds.end();
    if (!belongs && value != defaults.*number.member) {
      std::string kinds;
      for (const std::string& kind : number.kinds) {
        kinds += (kinds.empty() ? "\"" : " or \"") + kind + "\"";
      }
      return {number.key, "only has an effect with kind = " + kinds};
    }
    if (belongs && value < number.least) {
      return {number.key, "expected a number of at least " + std::to_string(number.least) +
                              " with kind = \"" + config.kind + "\", got " + std::to_string(value)};
    }
  }
  if (config.summary > config.segment) {
    return {"summary", "expected at most segment = " + std::to_string(config.segment) + ", got " +
                           std::to_string(config.summary)};
  }
  return {};
}

AttentionPattern PatternOf(const PatternConfig& config) {
  if (config.kind == "strided") return StridedPattern(config.stride, /*causal=*/true);
  AttentionPattern pattern;
  pattern.causal = true;
  pattern.window = config.window;
  pattern.global_tokens = config.global_tokens;
  pattern.segment = config.segment;
  pattern.summary = config.summary;
  if (config.kind == "random" || config.kind == "bigbird") {
    pattern.random = config.random;
    pattern.random_block = config.random_block;
    pattern.seed = static_cast<std::uint64_t>(config.seed);
  }
  return pattern;
}

}  // namespace tsallis::lab
