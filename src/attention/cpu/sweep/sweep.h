// Attention on long rows for alpha in (1, 2]: one sweep over the keys finds every entry that can be
// in a row's support, and the rest of the work follows the support. docs/explain/attention.md
// explains it.
//
// The keys of a head are packed once, in tiles of 64. A block of queries passes over the tiles; a
// score engine computes 16 x 64 scores at a time into a buffer that stays in the first-level cache,
// and a filter lists those at or above their row's bound. A bound is safe (the threshold of entries
// already listed, which never exceeds the row's) or guessed (threshold_guess.h) and then proved:
// after the row's list is solved, the guess must lie below the threshold found. Rows whose guess
// does not are swept again from a safe bound. Rows with more candidates than a list holds are dense
// and go to the dense kernel.
#pragma once

#include <hwy/aligned_allocator.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "attention/cpu/sweep/edges.h"
#include "attention/cpu/sweep/saved_lists.h"
#include "attention/geometry.h"
#include "attention/kernels.h"
#include "attention/terms.h"
#include "attention/threshold_guess.h"
#include "core/memory.h"

namespace tsallis {

inline constexpr std::int64_t kUnitRows = 16;    // queries of a unit
inline constexpr std::int64_t kTileKeys = 64;    // keys of a tile
inline constexpr std::int64_t kPairRows = 32;    // two units run behind each other
inline constexpr std::int64_t kBlockRows = 128;  // queries that pass over the keys together
inline constexpr std::size_t kUnitScores = kUnitRows * kTileKeys;
inline constexpr std::size_t kUnitScoreBytes = kUnitScores * sizeof(float);  // at most

// Memory of packed keys at a time; heads are taken in groups that fit.
inline constexpr std::size_t kPackedBytes = std::size_t{64} << 20;
// Blocks whose edges are kept before the keys take them up: as many as are expected to have
// kWaveEdges (3 MB) in all, within these limits; at first one or two.
inline constexpr std::int64_t kLeastWaveBlocks = 4, kWaveBlocks = 64;
inline constexpr std::int64_t kWaveEdges = 1 << 18;

// How scores are computed.
enum class ScoreEngine : std::uint8_t {
  kFloat,  // float32 multiply-add, any instruction set
  kInt8,   // vpdpbusd or sdot: upper bounds by bytes (int8-inl.h)
  kInt7,   // vpmaddubsw: the same with keys of 7 bits and sums of 16 (int7-inl.h)
  kAmx,    // tdpbf16ps
};

inline bool IsByteEngine(ScoreEngine engine) {
  return engine == ScoreEngine::kInt8 || engine == ScoreEngine::kInt7;
}
// Whether an engine's scores are those of float32 products of the inputs; if not, what is listed is
// computed again.
inline bool ScoresAreExact(ScoreEngine engine, DType dtype) {
  return engine == ScoreEngine::kFloat ||
         (engine == ScoreEngine::kAmx && dtype == DType::kBFloat16);
}

// Share of its keys that a head keeps where dense rows are as fast as lists (docs/log.md): of
// bfloat16 they run on the tile unit, else in float32.
inline double DenseShare(ScoreEngine engine, DType dtype) {
  if (!ScoresAreExact(engine, dtype)) return 0.125;
  return engine == ScoreEngine::kAmx ? 0.25 : 0.4;
}
// The same backward, where an entry of a list costs the same with any engine: seven to nine times
// as much as a dense pair on tiles, and on the vectors of AMD's AVX-512; on others about five
// times.
double DenseShareBackward(bool on_tiles);
// Entries of a row's list before the row is dense. A dense row of the backward pass takes its whole
// key head to the dense kernel, so that lists are long there.
std::int64_t ListCapacity(ScoreEngine engine, const AttentionParams& params, bool backward);

// Width of packed rows: whole tiles of the engine's inner dimension.
inline std::int64_t PackedDim(ScoreEngine engine, std::int64_t head_dim) {
  const std::int64_t step = engine == ScoreEngine::kFloat ? 1 : (IsByteEngine(engine) ? 4 : 32);
  return (head_dim + step - 1) / step * step;
}
// Bytes of an element of a packed key.
inline std::int64_t PackedElementBytes(ScoreEngine engine) {
  return engine == ScoreEngine::kFloat ? 4 : (IsByteEngine(engine) ? 1 : 2);
}

// Dimensions that kInt7 sums up in 16 bits, and how many such parts a row has.
inline constexpr std::int64_t kWordDims = 64;
inline std::int64_t WordParts(std::int64_t dim) { return (dim + kWordDims - 1) / kWordDims; }
// Bits that the sum of a part is shifted by, so that those of all parts fit into 16 bits together.
inline int WordShift(std::int64_t dim) {
  return std::bit_width(static_cast<std::uint64_t>(WordParts(dim) - 1));
}
// SumUnit(): steps in a unit of a byte engine's sums. SumSlack(): units that are added to a sum
// beyond the bound of the rounding to bytes: one for rounding in float32, and one for each part
// that is shifted.
inline std::int64_t SumUnit(ScoreEngine engine, std::int64_t dim) {
  return engine == ScoreEngine::kInt7 ? std::int64_t{1} << WordShift(dim) : 1;
}
inline std::int64_t SumSlack(ScoreEngine engine, std::int64_t dim) {
  return 1 + (SumUnit(engine, dim) > 1 ? WordParts(dim) : 0);
}
// 32-bit words of a packed query. In bytes, a word in front of the row (kInt7: of each part) says
// where its sums start, and kInt7 has every pair of dimensions twice.
inline std::int64_t QueryWords(ScoreEngine engine, std::int64_t dim) {
  switch (engine) {
    case ScoreEngine::kFloat: return dim;
    case ScoreEngine::kInt8: return 1 + dim / 4;
    case ScoreEngine::kInt7: return WordParts(dim) + dim / 2;
    case ScoreEngine::kAmx: return dim / 2;
  }
  return 0;
}

// Behind the queries of a unit in bytes: a row's step, and its norm and that of what rounding took
// away, in steps.
struct ByteUnitTail {
  float step[kUnitRows], norm[kUnitRows], lost[kUnitRows];
};
// Behind a tile of keys in bytes: its step, and the largest of what its keys lost and of their
// norms, in steps.
struct alignas(64) ByteTileTail {
  float step, lost, norm;
};

// The keys of one (sequence, key head), as an engine reads them: groups of 16 keys,
// float32 [dim][16], bf16 [dim / 2][16][2] or bytes [dim / 4][16][4] (kInt7: [dim / 2][16][2]);
// keys past the end are 0.
struct PackedKeys {
  std::byte* data = nullptr;   // [tiles][64 keys], PackedBytes() of them
  std::int64_t count = 0;      // keys
  std::int64_t first = 0;      // row of the first on k's axis
  float largest_norm = 0.0f;   // of a key
  float packed_norm = 0.0f;    // the same as packed: in units of `scale`
  float largest_error = 0.0f;  // norm of a key minus its packed self; 0 if packing is exact
  float largest_step = 0.0f;   // of bytes
  bool usable = true;          // all finite and not so large that a product could overflow

  // Moments of a sample, for the guess. mean: [dim]; covariance packed like keys, its rows in place
  // of keys: [Tiles(head_dim)] tiles.
  float* mean = nullptr;
  std::byte* covariance = nullptr;
  // Of byte engines, [dim]: bytes are those of (key - centre) / scale and of query * scale.
  float* centre = nullptr;
  float* scale = nullptr;
};

inline std::int64_t Tiles(std::int64_t keys) { return (keys + kTileKeys - 1) / kTileKeys; }
inline std::size_t TileBytes(ScoreEngine engine, std::int64_t head_dim) {
  return static_cast<std::size_t>(kTileKeys * PackedDim(engine, head_dim) *
                                  PackedElementBytes(engine)) +
         (IsByteEngine(engine) ? sizeof(ByteTileTail) : 0);
}
inline std::size_t UnitBytes(ScoreEngine engine, std::int64_t head_dim) {
  return static_cast<std::size_t>(kUnitRows * QueryWords(engine, PackedDim(engine, head_dim))) * 4 +
         (IsByteEngine(engine) ? sizeof(ByteUnitTail) : 0);
}

// The findings of the pilot rows of a head.
struct HeadGuess {
  bool usable = false;  // else every row starts from nothing
  bool dense = false;   // the head's rows keep most keys: not worth sweeping
  bool seeds = false;   // the first and nearest keys bound a row better than the guess does
  float shift = 0.0f;   // mean deviation from the curve, in units of sigma
  float spread = 0.0f;  // its standard deviation
  double kept = 0.0;    // share of its keys that a row keeps
};

// Data that all blocks of a head share.
struct HeadContext {
  const AttentionParams* params = nullptr;
  const Sequence* sequence = nullptr;
  const PackedKeys* keys = nullptr;
  std::int64_t h = 0;
  double alpha = 1.5;
  const ThresholdCurve* curve = nullptr;
  HeadTerms terms;        // in units of z
  HeadTerms score_terms;  // the same of s: z / (alpha - 1) would round a 0 away

  // Whether a bound of z is another bound of products at another distance.
  bool by_distance() const { return terms.slope != 0.0 || terms.distances.any(); }
  // The sink's z; -inf: none.
  float sink() const {
    const double* sinks = params->terms.sink;
    return sinks == nullptr ? -std::numeric_limits<float>::infinity()
                            : static_cast<float>((alpha - 1.0) * sinks[h]);
  }
};

// Stands for a sink in the list of a row that is being solved; no key has this number.
inline constexpr std::uint32_t kSinkKey = 0xFFFFFFFF;

// One block of one query head.
struct BlockTask {
  std::size_t item = 0;  // whose rows it has
  std::int64_t q_begin = 0, count = 0;
  std::int64_t cost = 0;  // keys in reach of the last row
};

// Rows of a covariance that are summed in registers, floats of one, and what a vector reads past
// the sample.
inline constexpr std::int64_t kCovarianceRows = 4;
inline constexpr std::int64_t kCovarianceSpare = 16;
inline std::int64_t CovariancePitch(std::int64_t dim) { return (dim + 15) / 16 * 16; }
inline std::int64_t MomentFloats(std::int64_t dim) {
  return kMomentSamples * dim + kCovarianceSpare + (dim + kCovarianceRows) * CovariancePitch(dim);
}

// Memory of one thread; nothing is allocated while a block is worked on.
struct SweepScratch {
  SweepScratch(ScoreEngine engine, std::int64_t head_dim, std::int64_t value_dim,
               std::int64_t list_capacity);
  // At most, all in all.
  static std::size_t Bytes(ScoreEngine engine, std::int64_t head_dim, std::int64_t value_dim,
                           std::int64_t list_capacity);

  // Two pairs of units, [2][2] of the engine's Scores.
  hwy::AlignedFreeUniquePtr<std::byte[]> scores;
  hwy::AlignedFreeUniquePtr<std::uint16_t[]> masks;  // [2][32] lanes with a hit
  hwy::AlignedFreeUniquePtr<float[]> pair_bounds;    // [2][32] bounds of a pair's rows in a tile
  hwy::AlignedFreeUniquePtr<std::byte[]> queries;    // [block rows / 16] packed units
  hwy::AlignedFreeUniquePtr<float[]> query_rows;     // [block rows][dim] float32
  hwy::AlignedFreeUniquePtr<float[]> bounds;         // [slots] as raw scores; +inf: empty

  // Lists: row r begins at r * list_stride, which leaves room for a tile and a vector beyond the
  // capacity.
  std::int64_t list_capacity;
  std::int64_t list_stride;
  hwy::AlignedFreeUniquePtr<float[]> list_z;
  hwy::AlignedFreeUniquePtr<std::uint32_t[]> list_key;
  hwy::AlignedFreeUniquePtr<float[]> weights;  // [list_stride]
  // Sample of keys, [kMomentSamples][dim] and a vector, and their covariance, [dim + 3][pitch].
  hwy::AlignedFreeUniquePtr<float[]> moments;
  hwy::AlignedFreeUniquePtr<float[]> row_buffer;  // [max(head_dim, value_dim) + 64] twice
  hwy::AlignedFreeUniquePtr<float[]> pairs;       // sums, [block rows][2][head_dim or value_dim]

  // The members that a hit needs come first: one line of the cache.
  struct alignas(64) Row {
    std::int64_t lo = 0, hi = 0;  // visible keys, from the sequence's first
    std::int64_t count = 0;       // listed
    std::int64_t raise_at = 0;    // entries that trigger a higher bound
    bool active = false;
    bool guessed = false;
    bool dense = false;
    std::int64_t settled = 0;   // of the listed, those that are z and not raw scores
    std::int64_t position = 0;  // key of distance 0
    double score_factor = 0.0;  // s = score_factor * raw + terms
    double exact_factor = 0.0;  // z = exact_factor * raw + terms
    float factor = 0.0f;
    float centre = 0.0f;  // <q, centre of the packed keys>: the engine's scores lack it
    // A listed z is at most this far below and above the true one.
    float under = 0.0f, over = 0.0f;
    float bound = 0.0f;  // entries below it (in z) are not listed
    float mean = 0.0f, sigma = 0.0f, curve = 0.0f;
    float seed = -std::numeric_limits<float>::infinity();  // bound by Seed() alone
    float guess = 0.0f;    // what the bound was if it has to be proved, else -inf
    float maximum = 0.0f;  // of the list
    double tau = 0.0;      // once solved, in z; relative to the maximum before

    void Clear() { count = settled = 0; }
  };
  std::vector<Row> rows;  // [block rows]
  // Units hold slots: every row in its own at first, rows that are swept again side by side.
  std::int64_t slots = 0;
  std::uint8_t row_of_slot[kBlockRows] = {};
  std::uint8_t slot_of_row[kBlockRows] = {};
};

// Bounds over some tiles of keys.
struct PackedBounds {
  float norm = 0.0f, packed_norm = 0.0f, error = 0.0f, step = 0.0f;
  bool usable = true;
};

// The parts of a sweep as compiled for one instruction set and engine; null where that engine is
// not compiled for it.
struct SweepFunctions {
  ScoreEngine engine = ScoreEngine::kFloat;
  // Sets keys.centre and keys.scale from a sample of keys and queries; null: the engine needs none.
  void (*scale)(const AttentionParams& params, const Sequence& sequence, std::int64_t kv,
                const PackedKeys& keys) = nullptr;
  // Packs tiles [begin, end) of a head's keys.
  void (*pack)(const AttentionParams& params, const Sequence& sequence, std::int64_t kv,
               std::int64_t begin, std::int64_t end, const PackedKeys& keys,
               PackedBounds* bounds) = nullptr;
  void (*moments)(const AttentionParams& params, const Sequence& sequence, std::int64_t kv,
                  const PackedKeys& keys, SweepScratch& scratch) = nullptr;
  HeadGuess (*pilot)(const HeadContext& head, SweepScratch& scratch) = nullptr;
  // Rows [q_begin, q_begin + count), count <= kBlockRows: their supports go to `receiver`, or, if
  // that is null, what follows from them to `outputs`. Dense rows are left to `dense`.
  void (*forward)(const HeadContext& head, const HeadGuess& guess, std::int64_t q_begin,
                  std::int64_t count, const AttentionOutputs& outputs,
                  const WeightReceiver* receiver, const SavedLists& saved, SweepScratch& scratch,
                  std::vector<RowBlock>* dense) = nullptr;
  // Gradients of the same rows' queries, and the edges that their keys need. False: a row is dense,
  // and what was written means nothing.
  bool (*backward)(const HeadContext& head, std::int64_t q_begin, std::int64_t count,
                   const AttentionGradients& gradients, const SavedLists& saved,
                   SweepScratch& scratch, BlockEdges* edges) = nullptr;
  // Adds the edges of `count` blocks, in their order, to the sums of a bucket of keys; null: not
  // wanted. dk: [keys, head_dim], dv: [keys, value_dim].
  void (*add_edges)(const AttentionParams& params, const AttentionGradients& gradients,
                    const BlockEdges* blocks, std::size_t count, std::int64_t bucket, float* dk,
                    float* dv) = nullptr;
  void (*store)(const float* values, const MutableArray4& array, std::int64_t start,
                std::int64_t columns) = nullptr;
};

// For the instruction set in use. `emulated`: kAmx without a matrix unit, for tests.
SweepFunctions GetSweepFunctions(ScoreEngine engine, bool emulated);

// The kernel's passes with given functions; kernels and tests choose them.
void SweepForward(const SweepFunctions& functions, bool emulated, const Context& context,
                  const AttentionParams& params, const AttentionOutputs& outputs,
                  const std::vector<RowBlock>& rows, std::vector<RowBlock>* remaining);
void SweepWeights(const SweepFunctions& functions, bool emulated, const Context& context,
                  const AttentionParams& params, const WeightReceiver& receiver,
                  const std::vector<RowBlock>& rows, std::vector<RowBlock>* remaining);
void SweepBackward(const SweepFunctions& functions, bool emulated, const Context& context,
                   const AttentionParams& params, const AttentionGradients& gradients,
                   const std::vector<KeyHead>& key_heads, HeadSums* heads,
                   std::vector<KeyHead>* remaining);

}  // namespace tsallis
