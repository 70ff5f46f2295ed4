// A sequence in a file. Rows of keys and values alone are stored: what a cache derives from them it
// derives again, so that a file fits caches of any options. Little-endian:
//
//   "TsallisK"  version, dtype (u32 each)  layers, kv_heads, head_dim, value_dim (i64 each)
//   tokens of each layer (i64 [layers])  CRC-32C of all before (u32)
//   for each layer, for each 64 tokens: keys [kv_heads][tokens][head_dim], values likewise
//   CRC-32C of the rows (u32)
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>
#include <system_error>
#include <vector>

#include "cache/reader.h"
#include "core/atomic_file.h"
#include "core/crc32c.h"
#include "tsallis/error.h"
#include "tsallis/kv_cache.h"

namespace tsallis {
namespace {

using std::to_string;

static_assert(std::endian::native == std::endian::little);

constexpr char kMagic[8] = {'T', 's', 'a', 'l', 'l', 'i', 's', 'K'};
constexpr std::uint32_t kVersion = 1;

struct Start {
  char magic[8];
  std::uint32_t version, dtype;
  std::int64_t layers, kv_heads, head_dim, value_dim;
};
static_assert(sizeof(Start) == 48);

[[noreturn]] void Fail(const std::string& path) {
  throw std::system_error(errno, std::generic_category(), path + ": cannot be read");
}

[[noreturn]] void Damaged(const std::string& path, const std::string& why) {
  throw InvalidArgument("path", "a whole file of a saved sequence", path + ", " + why);
}

// Two threads may save to one path: the last one stays.
std::string OwnSuffix() {
  static std::atomic<int> count = 0;
  // GCC 12 warns of a copy that is none where a sum begins with ".".
  return std::string(1, '.') + to_string(getpid()) + "." + to_string(count++) + ".tmp";
}

// An open file, closed with the object.
class File {
 public:
  explicit File(const std::string& path) : fd_(open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    if (fd_ < 0) Fail(path);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File() { close(fd_); }

  int fd() const { return fd_; }

 private:
  int fd_;
};

class Input {
 public:
  explicit Input(const std::string& path) : path_(path), file_(path) {
    struct stat status {};
    if (fstat(file_.fd(), &status) != 0) Fail(path);
    if (!S_ISREG(status.st_mode)) Damaged(path, "which is no file");
    remaining_ = status.st_size;
  }

  std::int64_t remaining() const { return remaining_; }
  void Read(void* data, std::size_t size) {
    if (static_cast<std::int64_t>(size) > remaining_) Damaged(path_, "which is cut short");
    auto* to = static_cast<std::byte*>(data);
    remaining_ -= static_cast<std::int64_t>(size);
    while (size > 0) {
      const ssize_t count = read(file_.fd(), to, size);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) Fail(path_);
      if (count == 0) Damaged(path_, "which is cut short");
      to += count;
      size -= static_cast<std::size_t>(count);
    }
  }
  void Check(std::uint32_t found) {
    std::uint32_t wanted = 0;
    Read(&wanted, sizeof wanted);
    if (wanted == found) return;
    char text[80];
    std::snprintf(text, sizeof text, "which is damaged: its checksum is %08x, not %08x", found,
                  wanted);
    Damaged(path_, text);
  }

 private:
  const std::string& path_;
  File file_;
  std::int64_t remaining_ = 0;
};

std::string Describe(std::int64_t layers, std::int64_t kv_heads, std::int64_t head_dim,
                     std::int64_t value_dim, DType dtype) {
  return to_string(layers) + " layers, " + to_string(kv_heads) + " key heads, keys of " +
         to_string(head_dim) + ", values of " + to_string(value_dim) + ", " + Name(dtype);
}

std::int64_t TokenBytes(const KvCacheShape& shape) {
  return shape.kv_heads * (shape.head_dim + shape.value_dim) *
         static_cast<std::int64_t>(SizeOf(shape.dtype));
}

// The tokens of each layer of a file that holds a whole sequence for caches of this shape.
std::vector<std::int64_t> ReadHeader(const std::string& path, const KvCacheShape& shape,
                                     Input& in) {
  Start start{};
  if (in.remaining() < static_cast<std::int64_t>(sizeof start)) Damaged(path, "which is cut short");
  in.Read(&start, sizeof start);
  if (std::memcmp(start.magic, kMagic, sizeof kMagic) != 0) {
    Damaged(path, "which does not begin like one");
  }
  if (start.version != kVersion) {
    throw InvalidArgument("path", "a saved sequence of version " + to_string(kVersion),
                          path + " of version " + to_string(start.version));
  }
  if (start.layers < 1 || start.layers > in.remaining() / 8)
    Damaged(path, "which is damaged or cut short");
  std::vector<std::int64_t> lengths(static_cast<std::size_t>(start.layers));
  in.Read(lengths.data(), lengths.size() * sizeof lengths[0]);
  in.Check(
      Crc32c(lengths.data(), lengths.size() * sizeof lengths[0], Crc32c(&start, sizeof start)));
  const auto dtype = static_cast<DType>(start.dtype);
  if (start.layers != shape.layers || start.kv_heads != shape.kv_heads ||
      start.head_dim != shape.head_dim || start.value_dim != shape.value_dim ||
      dtype != shape.dtype) {
    throw InvalidArgument(
        "path",
        "a sequence of a cache like this one (" +
            Describe(shape.layers, shape.kv_heads, shape.head_dim, shape.value_dim, shape.dtype) +
            ")",
        path + " (" +
            Describe(start.layers, start.kv_heads, start.head_dim, start.value_dim, dtype) + ")");
  }
  std::int64_t rest = in.remaining() - static_cast<std::int64_t>(sizeof(std::uint32_t));
  for (const std::int64_t length : lengths) {
    if (length < 0 || length > std::max<std::int64_t>(rest, 0) / TokenBytes(shape)) {
      Damaged(path, "which is cut short");
    }
    rest -= length * TokenBytes(shape);
  }
  if (rest != 0) Damaged(path, "which is " + to_string(rest) + " bytes too long");
  return lengths;
}

}  // namespace

void KvCache::Save(Sequence sequence, const std::string& path) const {
  const KvCacheShape& of = shape();
  std::vector<std::int64_t> lengths;
  for (std::int64_t layer = 0; layer < of.layers; ++layer) {
    lengths.push_back(Length(sequence, layer));
  }
  Start start{.magic = {},
              .version = kVersion,
              .dtype = static_cast<std::uint32_t>(of.dtype),
              .layers = of.layers,
              .kv_heads = of.kv_heads,
              .head_dim = of.head_dim,
              .value_dim = of.value_dim};
  std::memcpy(start.magic, kMagic, sizeof kMagic);
  const std::size_t lengths_size = lengths.size() * sizeof lengths[0];
  const std::uint32_t of_header =
      Crc32c(lengths.data(), lengths_size, Crc32c(&start, sizeof start));
  AtomicFile out(path, OwnSuffix());
  out.Write(&start, sizeof start);
  out.Write(lengths.data(), lengths_size);
  out.Write(&of_header, sizeof of_header);
  std::uint32_t of_rows = 0;
  std::vector<std::byte> chunk;
  for (std::int64_t layer = 0; layer < of.layers; ++layer) {
    const CacheReader reader(*this, sequence, layer);
    for (std::int64_t at = 0; at < reader.length(); at += kPage) {
      const std::int64_t count = std::min(kPage, reader.length() - at);
      chunk.clear();
      const auto add = [&](const HeadRows& rows) {
        const auto* from = static_cast<const std::byte*>(rows.At(at));
        chunk.insert(chunk.end(), from, from + count * rows.row_bytes);
      };
      for (std::int64_t head = 0; head < of.kv_heads; ++head) add(reader.Keys(head));
      for (std::int64_t head = 0; head < of.kv_heads; ++head) add(reader.Values(head));
      of_rows = Crc32c(chunk.data(), chunk.size(), of_rows);
      out.Write(chunk.data(), chunk.size());
    }
  }
  out.Write(&of_rows, sizeof of_rows);
  out.Commit();
}

KvCache::Sequence KvCache::Load(const Context& context, const std::string& path) {
  const KvCacheShape& of = shape();
  Input in(path);
  const std::vector<std::int64_t> lengths = ReadHeader(path, of, in);
  const auto element = static_cast<std::int64_t>(SizeOf(of.dtype));
  std::vector<std::byte> chunk(static_cast<std::size_t>(kPage * TokenBytes(of)));
  const Sequence sequence = Create();
  try {
    std::uint32_t of_rows = 0;
    for (std::int64_t layer = 0; layer < of.layers; ++layer) {
      std::int64_t remaining = lengths[static_cast<std::size_t>(layer)];
      while (remaining > 0) {
        const std::int64_t count = std::min(kPage, remaining);
        const auto size = static_cast<std::size_t>(count * TokenBytes(of));
        in.Read(chunk.data(), size);
        of_rows = Crc32c(chunk.data(), size, of_rows);
        const auto rows = [&](std::int64_t at, std::int64_t columns) {
          return ConstArray4{chunk.data() + at, of.dtype, {0, count * columns, columns, 1}};
        };
        Append(context, sequence, layer, rows(0, of.head_dim),
               rows(of.kv_heads * count * of.head_dim * element, of.value_dim), count);
        remaining -= count;
      }
    }
    in.Check(of_rows);
  } catch (...) {
    Free(sequence);
    throw;
  }
  return sequence;
}

}  // namespace tsallis
