// Figures and the HTML page, drawn by Python.
#pragma once

#include <filesystem>

namespace tsallis::lab {

// Runs `python -m tsallis_report dir` with `source_dir`/python at the head of PYTHONPATH, which
// reads results.json and data/*.csv in `dir` and writes figures/ and report.html beside them. No
// shell is involved. Throws std::runtime_error with the end of Python's output if it cannot be run or fails.
void RenderFigures(const std::filesystem::path& dir, const std::filesystem::path& python,
                   const std::filesystem::path& source_dir);

}  // namespace tsallis::lab
