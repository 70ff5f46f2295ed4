// Attention on pages (tsallis/pages.h), as far as all devices share it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "attention/cpu/decode/decode.h"
#include "attention/geometry.h"
#include "tsallis/attention.h"
#include "tsallis/pages.h"

namespace tsallis {

inline constexpr std::int64_t kMostPageSize = std::int64_t{1} << 20;

inline std::int64_t IntegerAt(const ConstIntegers& integers, std::int64_t i) {
  if (integers.wide) return static_cast<const std::int64_t*>(integers.data)[i];
  return static_cast<const std::int32_t*>(integers.data)[i];
}

// The call with the pages' k and v in place of its own, no ranges, and k_len as what a table has
// room for. Throws InvalidArgument for what is wrong on every device; looks at no contents.
AttentionParams CheckedOnPages(AttentionParams params, const AttentionPages& pages);

// Whether the kernel of lists serves a CPU's call on pages, or why it does not.
bool ServedByLists(const AttentionParams& call, std::string* why);

// Sequence b of a CPU's call on pages (call.pages and call.ranges are there), by a kernel that is
// chosen by its own keys.
void RunForwardOfSequence(const Context& context, AttentionParams call, AttentionOutputs outputs,
                          std::int64_t b);

// All of them. A kernel is chosen by a sequence's own keys, so that its bits do not depend on who
// shares the call: those with few queries go through lists of keys, all in one call, the others one
// by one.
void RunForwardOfSequences(const Context& context, const AttentionParams& call,
                           const decode::Screens& screens, const AttentionOutputs& outputs);

// Throws InvalidArgument, which calls it `name`.
void CheckScreen(const char* name, const PageScreen& screen, std::int64_t page_size);

// Of 64 keys: their bytes as in a page of KvCache, and behind them a float that no norm of a key
// exceeds.
inline float* ScreenNorm(std::byte* screen, std::int64_t head_dim) {
  return reinterpret_cast<float*>(screen + decode::PageBytes(head_dim));
}
inline const float* ScreenNorm(const std::byte* screen, std::int64_t head_dim) {
  return reinterpret_cast<const float*>(screen + decode::PageBytes(head_dim));
}

// Row `from` of a head, to where its columns lie step elements apart.
void CopyRow(const HeadRows& rows, std::int64_t from, std::int64_t columns, std::byte* to,
             std::int64_t step = 1);

}  // namespace tsallis
