#include "tsallis/cpu.h"

#include "core/target.h"

#include <hwy/highway.h>

#include <cstdint>
#include <cstring>

#if HWY_ARCH_X86
#include <cpuid.h>
#endif

namespace tsallis {
namespace {

#if HWY_ARCH_X86
std::string BrandString() {
  unsigned words[12] = {};
  unsigned highest = __get_cpuid_max(0x80000000u, nullptr);
  if (highest < 0x80000004u) return {};
  for (unsigned leaf = 0; leaf < 3; ++leaf) {
    unsigned* w = words + 4 * leaf;
    __get_cpuid(0x80000002u + leaf, w, w + 1, w + 2, w + 3);
  }
  char text[sizeof(words) + 1] = {};
  std::memcpy(text, words, sizeof(words));
  const std::string brand(text);
  const std::size_t first = brand.find_first_not_of(' '), last = brand.find_last_not_of(' ');
  return first == std::string::npos ? std::string() : brand.substr(first, last - first + 1);
}

// Twelve letters: four each in EBX, EDX and ECX.
std::string Vendor() {
  unsigned a = 0, words[3] = {};
  if (!__get_cpuid(0, &a, words, words + 2, words + 1)) return {};
  char text[sizeof(words) + 1] = {};
  std::memcpy(text, words, sizeof(words));
  return text;
}
#endif

}  // namespace

CpuInfo QueryCpu() {
  CpuInfo info;
  const auto compiled = static_cast<std::uint64_t>(HWY_TARGETS);
  for (std::uint64_t bit = 1; bit != 0; bit <<= 1) {
    if ((compiled & bit) == 0) continue;
    info.compiled_targets.emplace_back(hwy::TargetName(static_cast<std::int64_t>(bit)));
  }
  info.chosen_target = TargetInUse();
#if HWY_ARCH_X86
  info.processor = BrandString();
  info.vendor = Vendor();
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d)) {
    info.avx512_vnni = ((c >> 11) & 1u) != 0;
    info.amx_bf16 = ((d >> 22) & (d >> 24) & 1u) != 0;
  }
  if (__get_cpuid_count(7, 1, &a, &b, &c, &d)) {
    info.avx_vnni = ((a >> 4) & 1u) != 0;
    info.avx512_bf16 = ((a >> 5) & 1u) != 0;
  }
#endif
  return info;
}

bool FastBfloat16(const CpuInfo& cpu) {
  return cpu.amx_bf16 || (cpu.avx512_bf16 && cpu.vendor == "AuthenticAMD");
}

}  // namespace tsallis
