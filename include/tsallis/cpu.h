// Lists the instruction sets that kernels were compiled for and that this machine offers, for
// `tsallis info`.
#pragma once

#include <string>
#include <vector>

namespace tsallis {

struct CpuInfo {
  std::string processor;  // as it names itself, or after the numbers it has instead; empty: unknown
  std::string vendor;     // "GenuineIntel", "AuthenticAMD", "ARM", ...; empty: unknown
  // Highway's names of the instruction sets in this build, best first, and the one in use here.
  std::vector<std::string> compiled_targets;
  std::string chosen_target;
  // Reported by the processor. Using AMX also takes the kernel's permission.
  bool avx_vnni = false;
  bool avx512_vnni = false;
  bool avx512_bf16 = false;
  bool amx_bf16 = false;
  bool arm_dotprod = false;
  bool arm_bf16 = false;
  bool arm_i8mm = false;
};

CpuInfo QueryCpu();

// Whether matrix products of bfloat16 take half the time of float32's or less: on tiles (AMX), and
// by dot products (AVX-512 BF16) on AMD's processors. Intel's processors without tiles take longer
// for bfloat16 than for float32.
bool FastBfloat16(const CpuInfo& cpu);

}  // namespace tsallis
