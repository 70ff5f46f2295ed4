// What a stream is connected to.
#pragma once

#include <cstdio>

namespace tsallis::cli {

bool IsTerminal(std::FILE* stream);
bool UseColor(
    std::FILE* stream);  // a terminal that can, and NO_COLOR is not set (https://no-color.org)
int Width(std::FILE* stream);  // columns; COLUMNS or 100 where there is no terminal to ask

}  // namespace tsallis::cli
