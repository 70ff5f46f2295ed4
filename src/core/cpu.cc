#include "tsallis/cpu.h"

#include "core/target.h"

#include <hwy/highway.h>

#include <cstdint>
#include <cstdio>
#include <cstring>

#if HWY_ARCH_X86
#include <cpuid.h>
#elif HWY_ARCH_ARM_A64 && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
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
#elif HWY_ARCH_ARM_A64 && defined(__linux__)
struct Numbered {
  std::uint64_t number;
  const char* name;
};

template <std::size_t kCount>
std::string NameOf(const Numbered (&all)[kCount], std::uint64_t number) {
  for (const Numbered& one : all) {
    if (one.number == number) return one.name;
  }
  return {};
}

// ARM's processors have numbers in place of names: those of "Arm Architecture Reference Manual",
// MIDR_EL1, and of the manuals of the cores that servers have.
constexpr Numbered kVendors[] = {{0x41, "ARM"},    {0x46, "Fujitsu"}, {0x48, "HiSilicon"},
                                 {0x4E, "NVIDIA"}, {0x61, "Apple"},   {0xC0, "Ampere"}};
constexpr Numbered kCoresOfArm[] = {
    {0xD07, "Cortex-A57"},  {0xD08, "Cortex-A72"},  {0xD0B, "Cortex-A76"}, {0xD0C, "Neoverse N1"},
    {0xD40, "Neoverse V1"}, {0xD49, "Neoverse N2"}, {0xD4F, "Neoverse V2"}};

void AskProcessor(CpuInfo* info) {
  const unsigned long has = getauxval(AT_HWCAP), has_too = getauxval(AT_HWCAP2);
  info->arm_dotprod = (has & HWCAP_ASIMDDP) != 0;
  info->arm_bf16 = (has_too & HWCAP2_BF16) != 0;
  info->arm_i8mm = (has_too & HWCAP2_I8MM) != 0;
  if ((has & HWCAP_CPUID) == 0) return;  // the system lets programs read no number
  std::uint64_t numbers = 0;
  __asm__("mrs %0, MIDR_EL1" : "=r"(numbers));
  const std::uint64_t vendor = numbers >> 24 & 0xFF, core = numbers >> 4 & 0xFFF;
  info->vendor = NameOf(kVendors, vendor);
  const std::string name = vendor == 0x41 ? NameOf(kCoresOfArm, core) : std::string();
  if (!name.empty()) {
    info->processor = info->vendor + ' ' + name;
    return;
  }
  char text[64];
  std::snprintf(text, sizeof text, "%s part 0x%x", info->vendor.c_str(),
                static_cast<unsigned>(core));
  info->processor = text + (info->vendor.empty() ? 1 : 0);
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
#elif HWY_ARCH_ARM_A64 && defined(__linux__)
  AskProcessor(&info);
#endif
  return info;
}

bool FastBfloat16(const CpuInfo& cpu) {
  return cpu.amx_bf16 || (cpu.avx512_bf16 && cpu.vendor == "AuthenticAMD");
}

}  // namespace tsallis
