#include "lab/base/safetensors.h"

#include <fmt/format.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string_view>

#include "core/atomic_file.h"
#include "core/crc32c.h"

namespace tsallis::lab {
namespace {

struct DTypeName {
  c10::ScalarType type;
  const char* name;
};
constexpr std::array<DTypeName, 6> kDTypes = {{{c10::kFloat, "F32"},
                                               {c10::kDouble, "F64"},
                                               {c10::kBFloat16, "BF16"},
                                               {c10::kFloat8_e4m3fn, "F8_E4M3"},
                                               {c10::kHalf, "F16"},
                                               {c10::kLong, "I64"}}};

[[noreturn]] void Fail(const std::filesystem::path& path, const std::string& what) {
  throw std::runtime_error(path.string() + ": " + what);
}

std::string Reason() { return std::strerror(errno); }

const char* NameOf(c10::ScalarType type, const std::filesystem::path& path) {
  for (const DTypeName& known : kDTypes) {
    if (known.type == type) return known.name;
  }
  Fail(path, std::string("cannot store tensors of type ") + c10::toString(type));
}

c10::ScalarType TypeOf(const std::string& name, const std::filesystem::path& path) {
  for (const DTypeName& known : kDTypes) {
    if (name == known.name) return known.type;
  }
  Fail(path, "unknown tensor type \"" + name + "\"");
}

// How the checksum stands in the header, which has it once: no tensor and no other metadata is
// called that.
constexpr std::string_view kChecksum = "\"crc32c\":\"";
constexpr std::size_t kDigits = 8;
constexpr const char* kNoDigits = "00000000";

// Continues the checksum `before` with the rest of `in`, in pieces.
std::uint32_t ChecksumOf(std::ifstream& in, std::uint32_t before) {
  std::vector<char> piece(1 << 20);
  while (in.read(piece.data(), static_cast<std::streamsize>(piece.size())), in.gcount() > 0) {
    before = Crc32c(piece.data(), static_cast<std::size_t>(in.gcount()), before);
  }
  in.clear();
  return before;
}

}  // namespace

const at::Tensor* TensorFile::Find(const std::string& name) const {
  for (const auto& [known, tensor] : tensors) {
    if (known == name) return &tensor;
  }
  return nullptr;
}

const at::Tensor& TensorFile::At(const std::string& name) const {
  if (const at::Tensor* tensor = Find(name)) return *tensor;
  throw std::runtime_error("no tensor \"" + name + "\" in the checkpoint");
}

void WriteTensors(const std::filesystem::path& path, const TensorFile& file) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  header["__metadata__"] = file.metadata;
  header["__metadata__"]["crc32c"] = kNoDigits;
  std::vector<at::Tensor> contents;
  std::size_t offset = 0;
  for (const auto& [name, tensor] : file.tensors) {
    contents.push_back(tensor.detach().cpu().contiguous());
    const std::size_t size = contents.back().nbytes();
    header[name] = {{"dtype", NameOf(tensor.scalar_type(), path)},
                    {"shape", tensor.sizes().vec()},
                    {"data_offsets", {offset, offset + size}}};
    offset += size;
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');  // tensors start at a multiple of eight bytes
  std::uint32_t checksum = Crc32c(text.data(), text.size());
  for (const at::Tensor& tensor : contents) {
    checksum = Crc32c(tensor.const_data_ptr(), tensor.nbytes(), checksum);
  }
  text.replace(text.find(kChecksum) + kChecksum.size(), kDigits, fmt::format("{:08x}", checksum));
  const std::uint64_t length = text.size();
  AtomicFile out(path.string());
  out.Write(&length, sizeof(length));
  out.Write(text.data(), text.size());
  for (const at::Tensor& tensor : contents) out.Write(tensor.const_data_ptr(), tensor.nbytes());
  out.Commit();
}

TensorFile ReadTensors(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) Fail(path, "cannot be read: " + Reason());
  const std::uint64_t total = std::filesystem::file_size(path);
  std::uint64_t length = 0;
  if (!in.read(reinterpret_cast<char*>(&length), sizeof(length)) ||
      length > total - sizeof(length)) {
    Fail(path, "not a safetensors file, or cut short");
  }
  std::string text(length, '\0');
  in.read(text.data(), static_cast<std::streamsize>(length));
  if (const std::size_t at = text.find(kChecksum); in && at != std::string::npos) {
    const std::size_t digits = at + kChecksum.size();
    const std::string wanted = text.substr(digits, kDigits);
    std::string blank = text;
    blank.replace(digits, wanted.size(), kNoDigits);
    const std::uint32_t found = ChecksumOf(in, Crc32c(blank.data(), blank.size()));
    if (fmt::format("{:08x}", found) != wanted) {
      Fail(path, fmt::format("damaged: its checksum should be {} and is {:08x}", wanted, found));
    }
  }
  const nlohmann::ordered_json header = nlohmann::ordered_json::parse(text, nullptr, false);
  if (!in || !header.is_object())
    Fail(path, "its header is not JSON: not a safetensors file, or damaged");
  const std::uint64_t data = total - sizeof(length) - length;
  TensorFile file;
  try {
    for (const auto& [name, entry] : header.items()) {
      if (name == "__metadata__") {
        file.metadata = entry.get<std::map<std::string, std::string>>();
        file.metadata.erase("crc32c");
        continue;
      }
      const auto shape = entry.at("shape").get<std::vector<std::int64_t>>();
      const auto range = entry.at("data_offsets").get<std::array<std::uint64_t, 2>>();
      for (const std::int64_t size : shape) {
        if (size < 0) Fail(path, "tensor \"" + name + "\" has a negative size");
      }
      const at::Tensor tensor =
          at::empty(shape, TypeOf(entry.at("dtype").get<std::string>(), path));
      if (range[1] > data || range[0] > range[1] || range[1] - range[0] != tensor.nbytes()) {
        Fail(path, "tensor \"" + name + "\" does not fit the file: cut short or damaged");
      }
      in.seekg(static_cast<std::streamoff>(sizeof(length) + length + range[0]));
      in.read(static_cast<char*>(tensor.mutable_data_ptr()),
              static_cast<std::streamsize>(tensor.nbytes()));
      if (!in) Fail(path, "reading tensor \"" + name + "\" failed: " + Reason());
      file.tensors.emplace_back(name, tensor);
    }
  } catch (const nlohmann::json::exception& error) {
    Fail(path, std::string("damaged header: ") + error.what());
  }
  return file;
}

}  // namespace tsallis::lab
