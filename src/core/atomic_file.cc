#include "core/atomic_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <system_error>
#include <utility>

namespace tsallis {
namespace {

[[noreturn]] void Fail(const std::string& path, const char* what, int error = errno) {
  throw std::system_error(error, std::generic_category(), path + ": " + what);
}

// The file that is replaced: links are followed.
std::string Target(const std::string& path) {
  struct stat state;
  if (stat(path.c_str(), &state) != 0) {
    if (lstat(path.c_str(), &state) == 0) Fail(path, "is a link to nothing", ENOENT);
    return path;  // not there yet, or open() says why
  }
  if (S_ISDIR(state.st_mode)) Fail(path, "cannot be replaced", EISDIR);
  if (!S_ISREG(state.st_mode)) Fail(path, "is no regular file", EINVAL);
  const std::unique_ptr<char, decltype(&std::free)> whole(realpath(path.c_str(), nullptr),
                                                          &std::free);
  return whole ? std::string(whole.get()) : path;
}

}  // namespace

AtomicFile::AtomicFile(const std::string& path, const std::string& suffix)
    : path_(Target(path)),
      aside_(path_ + suffix),
      fd_(open(aside_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666)) {
  if (fd_ < 0) Fail(path_, "cannot be written");
}

AtomicFile::~AtomicFile() {
  if (fd_ < 0) return;
  close(fd_);
  unlink(aside_.c_str());
}

void AtomicFile::Write(const void* data, std::size_t size) {
  const char* from = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t count = write(fd_, from, size);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) Fail(path_, "writing failed");
    from += count;
    size -= static_cast<std::size_t>(count);
  }
}

void AtomicFile::Commit() {
  if (fsync(fd_) != 0) Fail(path_, "flushing failed");
  if (close(std::exchange(fd_, -1)) != 0 || std::rename(aside_.c_str(), path_.c_str()) != 0) {
    const int error = errno;
    unlink(aside_.c_str());
    Fail(path_, "cannot be replaced", error);
  }
}

}  // namespace tsallis
