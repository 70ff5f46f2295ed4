// CSV (RFC 4180).
#pragma once

#include <string>

namespace tsallis::lab {

// A field, in quotes if it needs them.
inline std::string Quoted(const std::string& field) {
  if (field.find_first_of(",\"\n\r") == std::string::npos) return field;
  std::string quoted = "\"";
  for (const char c : field) {
    if (c == '"') quoted += '"';
    quoted += c;
  }
  return quoted + '"';
}

}  // namespace tsallis::lab
