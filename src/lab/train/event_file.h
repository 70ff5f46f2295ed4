// Scalars in TensorBoard's event files: records of protocol-buffer messages (tensorflow's
// event.proto, summary.proto) framed as its record_writer does, each with checksums.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

namespace tsallis::lab {

class EventFile {
 public:
  // A new file in `folder`. The steps after `step` of earlier files run again: TensorBoard is told
  // to forget it. Throws std::runtime_error if it cannot be written.
  EventFile(const std::filesystem::path& folder, std::int64_t step);

  // Visible to a running TensorBoard at once. Throws std::runtime_error if writing fails.
  void Add(std::int64_t step, const std::string& tag, double value);

 private:
  void Write(std::string event);

  std::filesystem::path path_;
  std::ofstream out_;
};

}  // namespace tsallis::lab
