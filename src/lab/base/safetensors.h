// Tensors on disk in the safetensors format: eight bytes of header length (little-endian), a JSON
// header, raw tensors. The header's metadata holds "crc32c", eight hexadecimal digits: the checksum
// of all that follows the length, with zeros in place of these digits.
#pragma once

#include <ATen/ATen.h>

#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace tsallis::lab {

struct TensorFile {
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  std::map<std::string, std::string> metadata;  // without the checksum

  const at::Tensor* Find(const std::string& name) const;  // null if it is not there
  const at::Tensor& At(const std::string& name) const;    // std::runtime_error if it is not there
};

// Writes aside, flushes to the disk and renames: a reader sees the old file or the whole new one.
// float32, float64, bfloat16, float8 (e4m3), float16 and int64 tensors of any device. Throws
// std::runtime_error with path and reason.
void WriteTensors(const std::filesystem::path& path, const TensorFile& file);

// Throws std::runtime_error for a file that is missing, cut short, not in the format or not what
// its checksum is of; files without one are read as they are.
TensorFile ReadTensors(const std::filesystem::path& path);

}  // namespace tsallis::lab
