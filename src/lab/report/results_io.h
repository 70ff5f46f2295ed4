// A finished study on disk, written and read back. A results folder holds
//
//     results.json  results.csv  report.md  data/*.csv (data_files.h)
//
// and, once RenderFigures (render.h) has run, figures/ and report.html.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>  // defines: nlohmann::ordered_json
#include <string>

#include "lab/report/results.h"

namespace tsallis::lab {

// What results.json holds and `--json` prints: everything but heat maps and attention maps, which
// are data of figures alone and live in data/*.csv.
nlohmann::ordered_json ToJson(const StudyResults& results);

// The Markdown page: heading, protocol, the table ours | paper | difference, command, commit,
// processor.
std::string MarkdownReport(const StudyResults& results);

// Writes the folder, which is created if need be. Each file is written aside and renamed, and
// results.json comes last, so a reader never sees half a report. Throws std::runtime_error with the
// path and the reason.
void WriteResults(const StudyResults& results, const std::filesystem::path& dir);

// Reads back what WriteResults wrote. Only results.json with "study" and "rows" is required; what
// else is missing stays empty. Throws std::runtime_error that names the file and the place in it.
StudyResults ReadResults(const std::filesystem::path& dir);

}  // namespace tsallis::lab
