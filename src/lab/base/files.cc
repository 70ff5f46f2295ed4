#include "lab/base/files.h"

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <system_error>

#include "core/atomic_file.h"

namespace tsallis::lab {

void MakeFolder(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (!error) return;
  throw std::runtime_error(folder.string() + ": cannot make the folder: " + error.message());
}

std::optional<std::string> ReadFile(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return std::nullopt;
  return std::string((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
}

nlohmann::ordered_json ReadJson(const std::filesystem::path& path) {
  const auto json = nlohmann::ordered_json::parse(ReadFile(path).value_or(""), nullptr, false);
  return json.is_discarded() ? nlohmann::ordered_json() : json;
}

void WriteFileAtomically(const std::filesystem::path& path, const std::string& text) {
  AtomicFile out(path.string());
  out.Write(text.data(), text.size());
  out.Commit();
}

}  // namespace tsallis::lab
