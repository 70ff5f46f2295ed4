// "Did you mean ...?": the nearest of a list of known words.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace tsallis::lab {

// Insertions, deletions, substitutions and swaps of neighbours that turn one word into the other.
std::size_t EditDistance(std::string_view a, std::string_view b);

// The known word nearest to `word`; empty if none is near enough to be what was meant.
std::string Nearest(std::string_view word, const std::vector<std::string>& known);

// Text to append to an error about an unknown word: `; did you mean "alpha"?`, or what is known if
// nothing is near: `; known: "a", "b"`, or nothing if nothing is known.
std::string Suggestion(std::string_view word, const std::vector<std::string>& known);

}  // namespace tsallis::lab
