// Folders, files as a whole, and files of text that a reader never sees half written.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

namespace tsallis::lab {

// Makes a folder and those above it, where they are not there. Throws std::runtime_error.
void MakeFolder(const std::filesystem::path& folder);

// All bytes of a file; none: it cannot be read.
std::optional<std::string> ReadFile(const std::filesystem::path& path);
// The JSON of a file; null: there is none, or it is damaged.
nlohmann::ordered_json ReadJson(const std::filesystem::path& path);

// Writes `text` aside, flushes it to the disk and renames it to `path`. Throws std::runtime_error.
void WriteFileAtomically(const std::filesystem::path& path, const std::string& text);

}  // namespace tsallis::lab
