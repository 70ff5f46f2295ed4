// A finished study on disk. A results folder holds
//
//     results.json  results.csv  data/*.csv (data_files.h)
//
// and, once RenderReport (render.h) has run, figures/, report.html and report.md.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>  // defines: nlohmann::ordered_json
#include <string>

#include "lab/report/results.h"

namespace tsallis::lab {

// The content of results.json, which `--json` prints: everything but heat maps and attention maps,
// which are data of figures alone and live in data/*.csv.
nlohmann::ordered_json ToJson(const StudyResults& results);

// Writes the folder, which is created if need be. Each file is written aside and renamed, and
// results.json comes last, so a reader never sees half a report. Throws std::runtime_error with the
// path and the reason.
void WriteResults(const StudyResults& results, const std::filesystem::path& dir);

}  // namespace tsallis::lab
