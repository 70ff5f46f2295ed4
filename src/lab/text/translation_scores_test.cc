#include "lab/text/translation_scores.h"

#include <gtest/gtest.h>

#include <cmath>

#include "lab/testing/lab_test_support.h"

namespace tsallis::lab {
namespace {

TEST(TranslationScores, AreThoseOfTheCorpus) {
  const std::vector<std::string> references = {"Die Datei läßt sich nicht öffnen .",
                                               "a b c d e f g h"};
  const TranslationScores perfect = ScoreTranslations(references, references);
  EXPECT_NEAR(perfect.of_corpus["bleu"].get<double>(), 100.0, 1e-9);
  EXPECT_NEAR(perfect.of_corpus["chrf"].get<double>(), 100.0, 1e-9);
  ExpectContains(perfect.signature, "tok:13a");
  ExpectContains(perfect.signature, "chrF2|");
  // Words: 7 of 8, pairs 5 of 7, triples 4 of 6, fours 3 of 5; as long as the reference.
  const TranslationScores one = ScoreTranslations({"a b c x e f g h"}, {"a b c d e f g h"});
  EXPECT_NEAR(one.of_corpus["bleu"].get<double>(),
              100.0 * std::pow(7.0 / 8 * 5.0 / 7 * 3.0 / 6 * 1.0 / 5, 0.25), 1e-9);
  // Three words are half as long again as two: e^(1 - 8/6) for six words of eight.
  const TranslationScores shorter = ScoreTranslations({"a b c d e f"}, {"a b c d e f g h"});
  EXPECT_NEAR(shorter.of_corpus["bleu"].get<double>(), 100.0 * std::exp(1.0 - 8.0 / 6.0), 1e-9);
  EXPECT_GT(ScoreTranslations({"\xff"}, {"a"}).signature.size(), 10U) << "bytes that are no text";
}

TEST(TranslationScores, EveryTranslationHasItsReference) {
  ExpectContains(UsageErrorOf([] {
                   ScoreTranslations({"a", "b"}, {"a"});
                 }),
                 "expected one or more, each with its reference, got 2 and 1 references");
  ExpectContains(UsageErrorOf([] { ScoreTranslations({}, {}); }), "got 0 and 0 references");
}

}  // namespace
}  // namespace tsallis::lab
