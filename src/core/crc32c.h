// CRC-32C (Castagnoli; RFC 3720, appendix B.4): what notices a flipped bit in a file, and what
// TensorBoard wants.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tsallis {

// The checksum of earlier bytes and these. before: the checksum of the earlier ones; 0 if none.
std::uint32_t Crc32c(const void* data, std::size_t size, std::uint32_t before = 0);

}  // namespace tsallis
