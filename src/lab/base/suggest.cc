#include "lab/base/suggest.h"

#include <algorithm>

namespace tsallis::lab {

std::size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<std::vector<std::size_t>> d(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i) d[i][0] = i;
  for (std::size_t j = 0; j <= b.size(); ++j) d[0][j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t substitution = d[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, substitution});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
      }
    }
  }
  return d[a.size()][b.size()];
}

std::string Nearest(std::string_view word, const std::vector<std::string>& known) {
  std::string best;
  std::size_t best_distance = 0;
  for (const std::string& candidate : known) {
    // A word that was cut short ("max" for "max-retrieval") is near, however much of it is missing.
    const bool cut = word.size() >= 3 && candidate.starts_with(word);
    const std::size_t distance = cut ? 1 : EditDistance(word, candidate);
    const std::size_t limit = std::max<std::size_t>(1, std::max(word.size(), candidate.size()) / 3);
    if (distance <= limit && (best.empty() || distance < best_distance)) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

std::string Suggestion(std::string_view word, const std::vector<std::string>& known) {
  if (known.empty()) return "";
  if (const std::string nearest = Nearest(word, known); !nearest.empty()) {
    return "; did you mean \"" + nearest + "\"?";
  }
  std::string text = "; known: ";
  for (std::size_t i = 0; i < known.size(); ++i) {
    text += (i == 0 ? "\"" : ", \"") + known[i] + "\"";
  }
  return text;
}

}  // namespace tsallis::lab
