// Tables of results for people: the terminal's and the helpers that the Markdown page shares.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lab/report/results.h"

namespace tsallis::lab {

// Columns that UTF-8 text takes on a terminal: 0 for combining marks, 2 for wide characters. A byte
// that is not UTF-8 counts as one.
int DisplayWidth(std::string_view text);

// `text` followed (or preceded) by spaces up to `width` columns; longer text comes back as it is.
std::string PadRight(std::string_view text, int width);
std::string PadLeft(std::string_view text, int width);

// Cut to `width` columns with an ellipsis; never through the middle of a character.
std::string Ellipsize(std::string_view text, int width);

// The lengths that occur, ascending, and the methods in the order of `results.methods`, followed by
// those that only rows name.
std::vector<std::int64_t> Lengths(const StudyResults& results);
std::vector<MethodInfo> MethodsInOrder(const StudyResults& results);

// The row of a method at a length, or null.
const ResultRow* FindRow(const StudyResults& results, const std::string& method, std::int64_t n);

// How many seeds the means are of: "one seed", "3 seeds", "2 to 3 seeds"; "no seeds" without rows.
std::string SeedText(const StudyResults& results);

// Ours minus the paper's, in points, if there is a figure to compare with.
std::optional<double> Difference(const ResultRow& row);

// "+1.3", "-0.4"; no sign for what rounds to zero.
std::string SignedPoints(double difference);

struct TableOptions {
  bool color = false;  // ANSI colours; the caller looks at NO_COLOR and at what the stream is
  int width = 80;      // columns of the terminal
};

// Methods as rows, lengths as columns: ours ± spread, and below it the paper's figure with the
// difference. The lengths are split into blocks, one under another, when they do not fit.
std::string TerminalTable(const StudyResults& results, const TableOptions& options = {});

}  // namespace tsallis::lab
