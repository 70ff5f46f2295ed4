// The instruction set that Highway's dispatch uses now, for kernels with code beside it. Highway
// orders its targets: code for one runs on every later one, so they are compared and never named.
#pragma once

namespace tsallis {

// Whether it is AVX2 or later, and AVX-512 (Highway's AVX3) or later.
bool RunsAvx2();
bool RunsAvx3();

// Highway's name for it.
const char* TargetInUse();

}  // namespace tsallis
