// Checks of a recipe that no key can make by itself.
#pragma once

#include <string>
#include <vector>

#include "lab/base/toml_reader.h"
#include "lab/config/recipe.h"

namespace tsallis::lab {

// Names become folders (runs/<study>/<scale>/<method>) and words of a comma-separated list. Returns
// what was expected, or nothing if it is fine.
std::string CheckName(const std::string& name);

std::vector<std::string> MethodNames(const Recipe& recipe);

// The method of that name, or null.
const MethodConfig* FindMethod(const Recipe& recipe, const std::string& name);

// `scale`: the one that the recipe has been changed for; empty: none.
void CheckAcross(const Recipe& recipe, const std::string& scale, TomlProblems& problems);

}  // namespace tsallis::lab
