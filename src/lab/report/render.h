// Figures, pages and the terminal's table, drawn by Python from a results folder.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <vector>

namespace tsallis::lab {

// The table of results on standard output.
struct TableOptions {
  bool show = false;
  bool color = false;  // ANSI colours; the caller looks at NO_COLOR and at what the stream is
  int width = 100;     // columns of the terminal
};

// Runs `python -m tsallis_report dirs`, which reads results.json or study.json and data/*.csv in
// each folder and writes figures/, report.html and report.md beside them. `together`: a folder for
// one page of all of them, which are analyses then; empty: none. Throws as RunPython (python.h).
void RenderReports(const std::vector<std::filesystem::path>& dirs, const TableOptions& table = {},
                   const std::filesystem::path& together = {});

// The same of a study that was just run: Python reads the folders of the runs that `study` names
// (Reproduced::study) and makes results.json and data/*.csv of them first.
void ReportRuns(const nlohmann::ordered_json& study, const std::filesystem::path& dir,
                const TableOptions& table = {});

}  // namespace tsallis::lab
