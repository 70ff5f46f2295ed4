// A sample of a task as something to write on.
#pragma once

#include <cstdint>
#include <vector>

#include "lab/generate/generate.h"
#include "lab/tasks/sequence.h"

namespace tsallis::lab {

struct Question {
  Prompt prompt;                     // up to the first answer that is asked for
  std::vector<std::int64_t> answer;  // what is to follow, up to the last one: [steps]
};

// For a task whose labels are the tokens that follow (Scoring::kExact): greedy decoding of the
// question gives the answer where every argmax over the answers is right with the whole sample read
// at once.
Question QuestionOf(const Sample& sample);

}  // namespace tsallis::lab
