#include "lab/base/files.h"

#include <stdexcept>
#include <system_error>

#include "core/aside_file.h"

namespace tsallis::lab {

void MakeFolder(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (!error) return;
  throw std::runtime_error(folder.string() + ": cannot make the folder: " + error.message());
}

std::string AsideOf(const std::filesystem::path& path) { return path.string() + ".tmp"; }

void WriteFileAtomically(const std::filesystem::path& path, const std::string& text) {
  AsideFile out(path.string(), AsideOf(path));
  out.Write(text.data(), text.size());
  out.Commit();
}

}  // namespace tsallis::lab
