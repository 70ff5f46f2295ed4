#include "core/crc32c.h"

#include <array>
#include <cstring>

namespace tsallis {
namespace {

// Eight bytes at a time (Kounavis and Berry 2005): tables[k][b] is byte b moved on by k bytes.
constexpr std::array<std::array<std::uint32_t, 256>, 8> kTables = [] {
  std::array<std::array<std::uint32_t, 256>, 8> tables{};
  for (std::uint32_t b = 0; b < 256; ++b) {
    std::uint32_t crc = b;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82F63B78U : 0U);
    tables[0][b] = crc;
  }
  for (std::size_t k = 1; k < 8; ++k) {
    for (std::size_t b = 0; b < 256; ++b) {
      const std::uint32_t crc = tables[k - 1][b];
      tables[k][b] = (crc >> 8) ^ tables[0][crc & 255];
    }
  }
  return tables;
}();

}  // namespace

std::uint32_t Crc32c(const void* data, std::size_t size, std::uint32_t before) {
  const auto* at = static_cast<const unsigned char*>(data);
  std::uint32_t crc = ~before;
  for (; size >= 8; size -= 8, at += 8) {
    std::uint32_t low = 0;
    std::uint32_t high = 0;
    std::memcpy(&low, at, 4);
    std::memcpy(&high, at + 4, 4);
    low ^= crc;
    crc = kTables[7][low & 255] ^ kTables[6][(low >> 8) & 255] ^ kTables[5][(low >> 16) & 255] ^
          kTables[4][low >> 24] ^ kTables[3][high & 255] ^ kTables[2][(high >> 8) & 255] ^
          kTables[1][(high >> 16) & 255] ^ kTables[0][high >> 24];
  }
  for (; size > 0; --size) crc = (crc >> 8) ^ kTables[0][(crc ^ *at++) & 255];
  return ~crc;
}

}  // namespace tsallis
