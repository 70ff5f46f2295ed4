#include "lab/base/paths.h"

#include <cstdlib>

namespace tsallis::lab {
namespace {

std::filesystem::path FromEnvironment(const char* variable, const char* fallback) {
  const char* value = std::getenv(variable);
  return value != nullptr && *value != '\0' ? value : fallback;
}

}  // namespace

// The two macros come from the build, for this file alone.
std::filesystem::path PythonExecutable() {
  return FromEnvironment("TSALLIS_PYTHON", TSALLIS_PYTHON);
}

std::filesystem::path SourceDir() {
  return FromEnvironment("TSALLIS_SOURCE_DIR", TSALLIS_SOURCE_DIR);
}

std::string PythonPath(const std::filesystem::path& source_dir) {
  const std::string others = FromEnvironment("PYTHONPATH", "").string();
  return (source_dir / "python").string() + (others.empty() ? "" : ":" + others);
}

}  // namespace tsallis::lab
