// A finished analysis on disk. Its folder holds
//
//     study.json  data/<table>.csv
//
// and, once RenderReports (render.h) has run, figures/, report.html and report.md.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "lab/report/analysis.h"

namespace tsallis::lab {

// The content of study.json, which `--json` prints: everything but the rows of tables.
nlohmann::ordered_json ToJson(const AnalysisReport& report);

// Writes the folder, which is created if need be. Each file is written aside and renamed, and
// study.json comes last, so that a folder with one is whole. Throws std::runtime_error.
void WriteAnalysis(const AnalysisReport& report, const std::filesystem::path& dir);

// Reads study.json in that folder; null if there is none, or one that is damaged.
nlohmann::ordered_json ReadAnalysis(const std::filesystem::path& dir);

}  // namespace tsallis::lab
