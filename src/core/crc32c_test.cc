#include "core/crc32c.h"

#include <gtest/gtest.h>

#include <string>

namespace tsallis {
namespace {

TEST(Crc32c, HasTheValuesOfItsDefinition) {
  // RFC 3720, B.4, and the usual check value.
  EXPECT_EQ(Crc32c("123456789", 9), 0xE3069283U);
  EXPECT_EQ(Crc32c(std::string(32, '\0').data(), 32), 0x8A9136AAU);
  EXPECT_EQ(Crc32c(std::string(32, '\xFF').data(), 32), 0x62A8AB43U);
  EXPECT_EQ(Crc32c("", 0), 0U);
}

TEST(Crc32c, GoesOnFromAnyPiece) {
  const std::string text = "keys and values of a sequence";
  const std::uint32_t whole = Crc32c(text.data(), text.size());
  for (std::size_t cut = 0; cut <= text.size(); ++cut) {
    EXPECT_EQ(Crc32c(text.data() + cut, text.size() - cut, Crc32c(text.data(), cut)), whole);
  }
}

}  // namespace
}  // namespace tsallis
