#include "core/aside_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <system_error>
#include <utility>

namespace tsallis {
namespace {

[[noreturn]] void Fail(const std::string& path, const char* what, int error = errno) {
  throw std::system_error(error, std::generic_category(), path + ": " + what);
}

}  // namespace

AsideFile::AsideFile(const std::string& path, const std::string& aside)
    : path_(path),
      aside_(aside),
      fd_(open(aside.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666)) {
  if (fd_ < 0) Fail(path_, "cannot be written");
}

AsideFile::~AsideFile() {
  if (fd_ < 0) return;
  close(fd_);
  unlink(aside_.c_str());
}

void AsideFile::Write(const void* data, std::size_t size) {
  const char* from = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t count = write(fd_, from, size);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) Fail(path_, "writing failed");
    from += count;
    size -= static_cast<std::size_t>(count);
  }
}

void AsideFile::Commit() {
  if (fsync(fd_) != 0) Fail(path_, "flushing failed");
  if (close(std::exchange(fd_, -1)) != 0 || std::rename(aside_.c_str(), path_.c_str()) != 0) {
    const int error = errno;
    unlink(aside_.c_str());
    Fail(path_, "cannot be replaced", error);
  }
}

}  // namespace tsallis
