// Figures, pages and the terminal's table, drawn by Python from a results folder.
#pragma once

#include <filesystem>

namespace tsallis::lab {

// The table of results on standard output.
struct TableOptions {
  bool show = false;
  bool color = false;  // ANSI colours; the caller looks at NO_COLOR and at what the stream is
  int width = 100;     // columns of the terminal
};

// Runs `python -m tsallis_report dir` with `source_dir`/python at the head of PYTHONPATH, which
// reads results.json and data/*.csv in `dir` and writes figures/, report.html and report.md beside
// them. No shell is involved. Throws std::runtime_error with the end of Python's output if it
// cannot be run or fails.
void RenderReport(const std::filesystem::path& dir, const std::filesystem::path& python,
                  const std::filesystem::path& source_dir, const TableOptions& table = {});

// The same with `python -m tsallis_report.scores dir`, which reads dir/inputs.safetensors and
// writes scores.json and scores.png beside it.
void RenderScores(const std::filesystem::path& dir, const std::filesystem::path& python,
                  const std::filesystem::path& source_dir);

}  // namespace tsallis::lab
