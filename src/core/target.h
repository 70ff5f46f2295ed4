// The instruction set that Highway's dispatch uses now, for kernels with code beside it: by what it
// has, as processors of x86 and ARM have it under different names.
#pragma once

namespace tsallis {

// Whether vectors hold 16 floats, a row of the matrix unit: AVX-512 and later.
bool HasVectorsOf16Floats();

// Whether pairs of bytes are multiplied to 16 bits (vpmaddubsw) in vectors of 8 floats: on AVX2.
bool MultipliesPairsOfBytes();

// The instructions that add four products of bytes to a lane; empty: the processor has none.
const char* ByteDots();

// The instructions that add two products of bf16 numbers to a lane, where they are faster than
// float32's; empty: the processor has none.
const char* PairDots();

// Highway's name for it.
const char* TargetInUse();

}  // namespace tsallis
