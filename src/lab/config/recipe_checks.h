// Checks of a recipe that no key can make by itself.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lab/base/toml_reader.h"
#include "lab/config/recipe.h"

namespace tsallis::lab {

// Names become folders (runs/<study>/<scale>/<method>) and words of a comma-separated list. Returns
// what was expected, or nothing if it is fine.
std::string CheckName(const std::string& name);

std::string CheckLengths(const std::vector<std::int64_t>& lengths);

// Beyond these, numbers are slips: no machine holds such a batch, and no one waits for so many
// steps.
constexpr std::int64_t kMostSamples = 1LL << 24;
constexpr std::int64_t kMostSteps = 1LL << 40;
Check<std::int64_t> UpTo(std::int64_t most);  // from 1

std::vector<std::string> MethodNames(const Recipe& recipe);
std::vector<std::string> ScaleNames(const Recipe& recipe);

// The method of that name, or null.
const MethodConfig* FindMethod(const Recipe& recipe, const std::string& name);

// `scale`: the one that the recipe has been changed for; empty: none.
void CheckAcross(const Recipe& recipe, const std::string& scale, TomlProblems& problems);

}  // namespace tsallis::lab
