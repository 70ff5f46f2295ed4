#include "attention/cpu/matrix_unit.h"

#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "tsallis/cpu.h"

namespace tsallis {

#if defined(__x86_64__)
namespace {

struct alignas(64) TileConfiguration {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

constexpr TileConfiguration HalfDepth() {
  TileConfiguration configuration;
  configuration.row_bytes[6] = 32;
  configuration.rows[7] = 8;
  return configuration;
}

__attribute__((target("amx-tile"))) void Configure(TileShapes shapes) {
  static constexpr TileConfiguration kWhole, kHalfDepth = HalfDepth();
  // GCC 12's intrinsic does not say that it reads memory.
  asm volatile("" ::: "memory");
  _tile_loadconfig(shapes == TileShapes::kWhole ? &kWhole : &kHalfDepth);
}

__attribute__((target("amx-tile"))) void Release() { _tile_release(); }

}  // namespace

MatrixUnitSession::MatrixUnitSession(bool real, TileShapes shapes) : real_(real) {
  if (real_) Configure(shapes);
}

// Tiles in use make every context switch save 8 KB.
MatrixUnitSession::~MatrixUnitSession() {
  if (real_) Release();
}
#endif

bool MatrixUnitUsable() {
#if defined(__x86_64__) && defined(__linux__)
  static const bool usable = [] {
    if (!QueryCpu().amx_bf16) return false;
    // The kernel grants tile memory to a process on request (ARCH_REQ_XCOMP_PERM,
    // XFEATURE_XTILEDATA).
    constexpr long kRequestPermission = 0x1023, kTileData = 18;
    return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  }();
  return usable;
#else
  return false;
#endif
}

}  // namespace tsallis
