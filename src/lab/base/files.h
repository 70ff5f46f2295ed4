// Folders, and files of text that a reader never sees half written.
#pragma once

#include <filesystem>
#include <string>

namespace tsallis::lab {

// Makes a folder and those above it, where they are not there. Throws std::runtime_error.
void MakeFolder(const std::filesystem::path& folder);

// Writes `text` aside, flushes it to the disk and renames it to `path`. Throws std::runtime_error.
void WriteFileAtomically(const std::filesystem::path& path, const std::string& text);

}  // namespace tsallis::lab
