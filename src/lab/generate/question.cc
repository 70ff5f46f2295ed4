#include "lab/generate/question.h"

namespace tsallis::lab {

Question QuestionOf(const Sample& sample) {
  const auto asked = [&](std::size_t i) { return sample.labels[i] != kNotScored; };
  std::size_t first = 0, end = sample.labels.size();
  while (first < end && !asked(first)) ++first;
  while (end > first && !asked(end - 1)) --end;
  Question question;
  for (std::size_t i = 0; i < sample.tokens.size() && i <= first; ++i) {
    question.prompt.tokens.push_back(sample.tokens[i]);
  }
  for (std::size_t i = first; i < end; ++i) {
    question.answer.push_back(asked(i) ? sample.labels[i] : sample.tokens[i + 1]);
    question.prompt.given.push_back(asked(i) ? kFree : sample.tokens[i + 1]);
  }
  return question;
}

}  // namespace tsallis::lab
