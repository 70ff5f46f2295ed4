// The scores of a model at several lengths, and their file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "lab/tasks/metric.h"

namespace tsallis::lab {

// A score has its length as "n", how many samples were asked for as "samples" (of sets as "sets"),
// and the numbers that the task's metrics are made of.
void SaveScores(const std::filesystem::path& path, const std::vector<Score>& scores);

// Nothing if there is no such file, or if it is not one of scores.
std::vector<Score> LoadScores(const std::filesystem::path& path);

// The score at a length, if it is of that many samples; else null.
const Score* FindScore(const std::vector<Score>& scores, std::int64_t n, std::int64_t samples);

}  // namespace tsallis::lab
