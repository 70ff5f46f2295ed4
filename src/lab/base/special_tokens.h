// The numbers of special tokens.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace tsallis::lab {

// They follow the data tokens 0 ... data - 1 in the order pad, bos, eos, mask, sep; mask is never
// drawn, it keeps the numbering of the code published with Vasylenko et al. 2025.
struct SpecialTokens {
  static constexpr std::array<const char*, 5> kNames = {"<pad>", "<bos>", "<eos>", "<mask>",
                                                        "<sep>"};

  std::int64_t data = 0;

  std::int64_t Pad() const { return data; }
  std::int64_t Bos() const { return data + 1; }
  std::int64_t Eos() const { return data + 2; }
  std::int64_t Sep() const { return data + 4; }
  // How many tokens there are with the special ones.
  std::int64_t All() const { return data + static_cast<std::int64_t>(kNames.size()); }
  // The name of a token from `data` on.
  const char* Name(std::int64_t token) const {
    return kNames.at(static_cast<std::size_t>(token - data));
  }
};

}  // namespace tsallis::lab
