// Files that are whole or not there.
#pragma once

#include <cstddef>
#include <string>

namespace tsallis {

// Writes the contents of `path` to `aside` beside it. Commit() renames `aside` to `path` once they
// are on the disk. Without Commit() nothing is left. Throws std::system_error with path and reason.
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
