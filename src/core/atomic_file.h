// A file that other programs see whole or not at all.
#pragma once

#include <cstddef>
#include <string>

namespace tsallis {

// Writes the contents of `path` to `path + suffix`. Commit() renames that to `path` once they are
// on the disk. Without Commit() nothing is left. Where `path` is a symbolic link, its target is
// replaced. Throws std::system_error with path and reason, also where `path` is there and is no
// regular file: a rename would destroy a device.
class AtomicFile {
 public:
  // Overwrites the temporary file of a writer that was killed.
  explicit AtomicFile(const std::string& path, const std::string& suffix = ".tmp");
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile();

  void Write(const void* data, std::size_t size);
  void Commit();

 private:
  std::string path_, aside_;
  int fd_;
};

}  // namespace tsallis
