// Tells whether a stream is a terminal, and prints documents for programs.
#pragma once

#include <cstdio>
#include <nlohmann/json.hpp>

namespace tsallis::cli {

bool IsTerminal(std::FILE* stream);
bool UseColor(
    std::FILE* stream);  // a terminal that can, and NO_COLOR is not set (https://no-color.org)
int Width(std::FILE* stream);  // columns; COLUMNS or 100 where there is no terminal to ask

// On standard output. Bytes that are no UTF-8, of texts or paths, become U+FFFD.
void PrintJson(const nlohmann::ordered_json& document);

}  // namespace tsallis::cli
