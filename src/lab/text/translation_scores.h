// How close translations are to those of people: scores of sacrebleu, in the Python process
// (python/tsallis_text), which says which.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace tsallis::lab {

struct TranslationScores {
  nlohmann::ordered_json of_corpus;  // numbers by name, 0 ... 100
  std::string signature;             // sacrebleu's, of all: what makes scores comparable
};

// hypotheses[i] is what a model says, references[i] the translation that was given. Bytes that are
// no UTF-8 count as U+FFFD. UsageError where the library is not installed, where the numbers of
// lines differ, and for none.
TranslationScores ScoreTranslations(const std::vector<std::string>& hypotheses,
                                    const std::vector<std::string>& references);

}  // namespace tsallis::lab
