// Files that are whole or not there.
#pragma once

#include <cstddef>
#include <string>

namespace tsallis {

// Contents of `path` that are written to `aside` beside it, and get its name when they are complete
// and on the disk. Without Commit() nothing is left. Throws std::system_error with path and reason.
class AsideFile {
 public:
  // An `aside` that is there, of a writer that was killed, is written over.
  AsideFile(const std::string& path, const std::string& aside);
  AsideFile(const AsideFile&) = delete;
  AsideFile& operator=(const AsideFile&) = delete;
  ~AsideFile();

  void Write(const void* data, std::size_t size);
  void Commit();

 private:
  std::string path_, aside_;
  int fd_;
};

}  // namespace tsallis
