#include "lab/train/event_file.h"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <stdexcept>
#include <type_traits>

#include "core/crc32c.h"

namespace tsallis::lab {
namespace {

// ---- protocol buffers: what these messages need of the wire format

void PutVarint(std::string& to, std::uint64_t value) {
  for (; value >= 128; value >>= 7) to += static_cast<char>((value & 127) | 128);
  to += static_cast<char>(value);
}

void PutKey(std::string& to, unsigned field, unsigned wire) { PutVarint(to, field << 3 | wire); }

template <class T>
void PutRaw(std::string& to, T value) {
  static_assert(std::is_trivially_copyable_v<T>);
  char bytes[sizeof(T)];
  std::memcpy(bytes, &value, sizeof(T));
  to.append(bytes, sizeof(T));
}

void PutInteger(std::string& to, unsigned field, std::int64_t value) {
  PutKey(to, field, 0);
  PutVarint(to, static_cast<std::uint64_t>(value));
}
void PutDouble(std::string& to, unsigned field, double value) {
  PutKey(to, field, 1);
  PutRaw(to, value);
}
void PutFloat(std::string& to, unsigned field, float value) {
  PutKey(to, field, 5);
  PutRaw(to, value);
}
void PutBytes(std::string& to, unsigned field, const std::string& bytes) {
  PutKey(to, field, 2);
  PutVarint(to, bytes.size());
  to += bytes;
}

double Now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// Records' checksums are masked, as checksums of data that holds checksums are weak.
std::uint32_t Masked(const std::string& bytes) {
  const std::uint32_t crc = Crc32c(bytes.data(), bytes.size());
  return (crc >> 15 | crc << 17) + 0xa282ead8U;
}

}  // namespace

EventFile::EventFile(const std::filesystem::path& folder, std::int64_t step) {
  // A name that sorts behind those of earlier files.
  path_ = folder / fmt::format("events.out.tfevents.{:.6f}.{}", Now(), getpid());
  out_.open(path_, std::ios::binary);
  std::string version;
  PutBytes(version, 3, "brain.Event:2");  // Event.file_version
  Write(version);
  std::string session;
  PutInteger(session, 1, 1);  // SessionLog.status: START
  std::string start;
  PutInteger(start, 2, step + 1);  // Event.step: from here on
  PutBytes(start, 7, session);     // Event.session_log
  Write(start);
}

void EventFile::Add(std::int64_t step, const std::string& tag, double value) {
  std::string scalar;
  PutBytes(scalar, 1, tag);                        // Summary.Value.tag
  PutFloat(scalar, 2, static_cast<float>(value));  // Summary.Value.simple_value
  std::string summary;
  PutBytes(summary, 1, scalar);  // Summary.value
  std::string event;
  PutInteger(event, 2, step);   // Event.step
  PutBytes(event, 5, summary);  // Event.summary
  Write(event);
}

void EventFile::Write(std::string event) {
  PutDouble(event, 1, Now());  // Event.wall_time
  std::string length;
  PutRaw(length, static_cast<std::uint64_t>(event.size()));
  std::string record = length;
  PutRaw(record, Masked(length));
  record += event;
  PutRaw(record, Masked(event));
  out_ << record << std::flush;
  if (!out_) throw std::runtime_error(path_.string() + ": writing failed (is the disk full?)");
}

}  // namespace tsallis::lab
