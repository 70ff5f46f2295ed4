#include "lab/base/files.h"

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

void WriteFileAtomically(const std::filesystem::path& path, const std::string& text) {
  AtomicFile out(path.string());
  out.Write(text.data(), text.size());
  out.Commit();
}

}  // namespace tsallis::lab
