// Attention of single queries on many keys: decoding. Keys are read where they lie, once for all
// query heads that share them; nothing is packed.
//
//   screen   an upper bound of every score
//   list     the keys that may have a weight: no threshold lies further below the largest score
//            than 1 / (alpha - 1)
//   score    the scores of the listed keys, exactly
//   solve    threshold and weights, in double, from the support alone
//   sum      the values of the support
//
// Keys that a distance alone rules out are not even screened (decode.cc). within.cc stops softmax
// early, with a proof; selected.cc has the approximations.
//
// The score of a key depends on the key and the query alone, and the solution on the scores of the
// support alone. So an output has the same bits whatever else was listed, however keys were
// screened, and wherever they lie.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "attention/geometry.h"
#include "attention/kernels.h"
#include "attention/terms.h"
#include "core/memory.h"
#include "tsallis/attention.h"
#include "tsallis/kv_cache.h"

namespace tsallis::decode {

inline constexpr std::int64_t kRows = 8;    // query heads that pass over the keys together, at most
inline constexpr std::int64_t kRun = 1024;  // keys that are screened at a time

// ---- bytes of keys ------------------------------------------------------------------------------
// A key k is t (b + r) with bytes b and a step t of its own, a query q likewise s (b' + r'), and
//   <q, k> <= s t <b', b> + |q| |t r| + |s r'| |t b|
// Keys of a page lie in groups of 16: [4 groups][dim / 4][16 keys][4], b + 128 each; behind them a
// float for every key: t, |t r| and |t b|, rounded up. A key that is not finite has |t r| = inf.

inline constexpr std::int64_t kPage = HeadRows::kPage;

inline std::int64_t ByteColumns(std::int64_t columns) { return (columns + 3) / 4 * 4; }
inline std::int64_t ByteTailAt(std::int64_t columns) { return kPage * ByteColumns(columns); }
inline std::int64_t PageBytes(std::int64_t columns) {
  return ByteTailAt(columns) + 3 * kPage * static_cast<std::int64_t>(sizeof(float));
}

// A query in bytes.
struct ByteQuery {
  const std::int8_t* bytes = nullptr;  // [ByteColumns]
  const std::int16_t* wide = nullptr;  // the same, for processors that do not multiply bytes
  std::int32_t sum = 0;                // of the bytes
  float step = 0.0f, norm = 0.0f, lost = 0.0f;
};

// Writes a key to place `slot` of a page's bytes and returns NormOf(key), or writes a query.
// values: [columns].
float PutKey(const float* values, std::int64_t columns, std::int64_t slot, std::byte* page);
ByteQuery PutQuery(const float* values, std::int64_t columns, std::int8_t* bytes);

// The norm of a key, rounded up; inf if the key is not finite.
float NormOf(const float* values, std::int64_t columns);

// ---- ranges and moments of a page --------------------------------------------------------------
// Describes the first keys of a page by columns: two floats a column, and the number of keys.
// Ranges hold the least and the largest number, moments the mean and the sum of squares about it.
// NaN in a column makes both NaN.

struct PageFacts {
  const float* first = nullptr;   // [columns]: least, or mean
  const float* second = nullptr;  // [columns]: largest, or sum of squares
};
inline std::int64_t FactBytes(std::int64_t columns) {
  return 8 * columns + static_cast<std::int64_t>(sizeof(std::int64_t));
}
PageFacts FactsAt(const std::byte* facts, std::int64_t columns);
std::int64_t CountAt(const std::byte* facts);
// Adds key `slot` of a page to what is known of those before; slot 0 begins anew.
void PutRange(const float* values, std::int64_t columns, std::int64_t slot, std::byte* facts);
void PutMoments(const float* values, std::int64_t columns, std::int64_t slot, std::byte* facts);

// Columns of a query in memory: whole vectors of any instruction set, the rest 0.
inline std::int64_t Padded(std::int64_t columns) { return (columns + 15) / 16 * 16; }

// The parts that are compiled for each instruction set.
struct Functions {
  // dot[r * pitch + j] = <keys.At(begin + j), q + r * Padded(columns)> of `count` keys.
  void (*dots)(const HeadRows& keys, std::int64_t begin, std::int64_t count, const float* q,
               std::int64_t rows, std::int64_t columns, float* dot, std::int64_t pitch) = nullptr;
  // dot[i] = <keys.At(index[i]), q>: the same bits.
  void (*gather_dots)(const HeadRows& keys, const std::uint32_t* index, std::size_t n,
                      const float* q, std::int64_t columns, float* dot) = nullptr;
  // Whether bounds from bytes take less time than scores: where bytes are multiplied in fours, or
  // integers of 16 bits in pairs, from AVX2 on.
  bool fast_bounds = false;
  // bound[r * pitch + j] >= <key j, query r> of the 64 keys of a page. ahead: bytes of a page that
  // comes soon, which this asks memory for, or null.
  void (*byte_bounds)(const std::byte* page, const std::byte* ahead, std::int64_t columns,
                      const ByteQuery* queries, std::int64_t rows, float* bound,
                      std::int64_t pitch) = nullptr;
  // Products become scores, but for roundings of float32. Returns the largest |product|. distance:
  // i - j of the first; keys ascend.
  float (*scores)(const HeadTerms& terms, double factor, std::int64_t distance, std::int64_t n,
                  float* x) = nullptr;
  // The largest; NaN if any is.
  float (*maximum)(const float* x, std::size_t n) = nullptr;
  // The indices of x that are not below bar, counted from `first`; `index` has room for n and a
  // vector.
  std::size_t (*at_least)(const float* x, std::size_t n, float bar, std::uint32_t first,
                          std::uint32_t* index) = nullptr;
  // x becomes exp(x - top); returns the sum.
  double (*exponentials)(float* x, std::size_t n, float top) = nullptr;
  // sum[r][c] += sum_j weight[r][j] values.At(begin + j)[c] for `count` keys. sum[r]:
  // [Padded(columns)].
  void (*sums)(const HeadRows& values, std::int64_t begin, std::int64_t count,
               const float* const* weight, std::int64_t rows, std::int64_t columns,
               float* const* sum) = nullptr;
  // sum[c] = sum_i weight[i] values.At(index[i])[c].
  void (*gather_sum)(const HeadRows& values, const std::uint32_t* index, const float* weight,
                     std::size_t n, std::int64_t columns, float* sum) = nullptr;
  void (*load)(const HeadRows& rows, std::int64_t row, std::int64_t columns, float* out) = nullptr;
  void (*store)(const float* values, const MutableArray4& array, std::int64_t start,
                std::int64_t columns) = nullptr;
};
Functions GetFunctions();

// Turns the scores of one query head into weights.
struct Map {
  double alpha = 1.5;              // 1: softmax
  double sink = -__builtin_inf();  // a further score without a value

  bool softmax() const { return alpha == 1.0; }
  // No weight lies further below the largest score.
  double Reach() const { return softmax() ? __builtin_inf() : 1.0 / (alpha - 1.0); }
};

struct SolveMemory {
  GrowingBuffer<double> z, support;
  GrowingBuffer<float> p;

  static constexpr std::size_t kBytes = 8 + 8 + 4;  // of a score
  std::size_t bytes() const { return z.bytes() + support.bytes() + p.bytes(); }
};

// The weights of scores that contain the support. s: [n] finite; the weights, 0 off the support,
// are memory->p afterwards. Returns tau as AttentionOutputs has it. For alpha > 1.
double Solve(const Map& map, const std::vector<double>& s, SolveMemory* memory);

// A lower bound of the threshold in s, from scores of some keys.
double LeastThreshold(const Map& map, const std::vector<double>& s, SolveMemory* memory);

// One query of the query heads that share a key head.
struct Query {
  const HeadRows* keys = nullptr;  // row 0 is key 0
  const HeadRows* values = nullptr;
  Span visible;               // keys
  std::int64_t position = 0;  // the key of distance 0
  // Bytes (in byte_pages), ranges and moments of the keys (in the pages of `keys`); -1: none. Exact
  // softmax has no use for bytes.
  std::int64_t byte_offset = -1, range_offset = -1, moment_offset = -1;
  const std::byte* const* byte_pages = nullptr;  // [visible.end / 64], of the bytes alone
  // No key has a larger norm. inf: distances rule no key out.
  float key_norm = std::numeric_limits<float>::infinity();
  DecodeMode mode;
  // Whether anybody asks for these: each costs a pass over the keys.
  bool wants_entropy = false, wants_certificate = false, wants_lost = false;
  std::int64_t rows = 0;  // query heads, at most kRows
  std::int64_t head_dim = 0, value_dim = 0;
  const float* q = nullptr;   // [rows][Padded(head_dim)]
  double factor[kRows] = {};  // of a product: c scale
  HeadTerms terms[kRows] = {};
  Map map[kRows] = {};
};

struct Answer {
  float* out = nullptr;  // [value_dim]
  double tau = 0.0, entropy = 0.0, maximum = 0.0;
  std::int64_t support = 0;
  std::int64_t scored = 0;  // keys that were scored exactly
  // The members of DecodeOutputs. Data that heads read together counts 0 bytes.
  double certificate = -__builtin_inf(), lost = 0.0;
  std::int64_t bytes_read = 0;
  // Whether the scores are so large that their rounding errors decide. Those of another kernel
  // differ.
  bool rounding_decides = false;
  // If not 0, the driver still has to compute out = pending_scale sum_j w_j v_j, with the weights w
  // that stand in place of the row's bounds.
  double pending_scale = 0.0;
};

// The data that a cache keeps beside the keys of its pages: its offset for key head 0 (-1: not
// kept), and the bytes from one head to the next.
struct Screens {
  std::int64_t byte_offset = -1, byte_head = 0;
  std::int64_t range_offset = -1, moment_offset = -1, fact_head = 0;
  // [batch]: for each 64 keys of a sequence the place from which byte_offset counts.
  const std::byte* const* const* byte_tables = nullptr;
  const float* const* key_norms = nullptr;  // [batch][norm_first + kv norm_step], or null
  std::int64_t norm_first = 0, norm_step = 1;

  bool bytes() const { return byte_offset >= 0; }
};

// The way in which a call chooses keys, and the statistics that it gives beside AttentionOutputs:
// [rows of the statistics], or null.
struct Account {
  DecodeMode mode;
  double* certificate = nullptr;
  double* lost = nullptr;
  std::int64_t* scored = nullptr;
  std::int64_t* bytes_read = nullptr;

  // Whether another kernel has no answer to this.
  bool asked() const {
    return mode.keys != DecodeKeys::kExact || certificate != nullptr || lost != nullptr ||
           scored != nullptr || bytes_read != nullptr;
  }
};

// Computes outputs and statistics of `rows`; adds rows of vast scores to `remaining`, unless that
// is null.
void Forward(const Context& context, const AttentionParams& params, const Screens& screens,
             const AttentionOutputs& outputs, const Account& account,
             const std::vector<RowBlock>& rows, std::vector<RowBlock>* remaining);

// Queries of a sequence of so many keys up to which this takes less time than the kernels that pack
// keys, or tiles of them, for all queries together (docs/log.md): with few keys little is packed.
// bytes: there are some to screen by.
std::int64_t MostQueries(const AttentionParams& params, bool bytes, std::int64_t keys);

// Forward() serves alphas in this range.
inline constexpr double kLeastAlpha = kLeastFloatAlpha, kMostAlpha = 4.0;

// Memory of one thread.
struct Scratch {
  GrowingBuffer<float> bounds;          // [rows][keys]
  GrowingBuffer<float> products;        // likewise
  GrowingBuffer<float> largest;         // [rows][runs] scores, then products
  GrowingBuffer<float> sums;            // [runs][rows][Padded(value_dim)]
  GrowingBuffer<std::uint32_t> listed;  // [keys]
  GrowingBuffer<float> dots, weights;   // [keys]
  GrowingBuffer<std::int8_t> bytes;     // [rows][ByteColumns]
  GrowingBuffer<std::int16_t> wide;     // likewise
  GrowingBuffer<std::uint32_t> order;   // [keys] of softmax within epsilon
  GrowingBuffer<std::uint32_t> chunk;   // [keys] likewise
  std::vector<double> scores;
  SolveMemory solve;

  std::size_t bytes_held() const {
    return bounds.bytes() + products.bytes() + largest.bytes() + sums.bytes() + listed.bytes() +
           dots.bytes() + weights.bytes() + bytes.bytes() + wide.bytes() + order.bytes() +
           chunk.bytes() + scores.capacity() * sizeof(double) + solve.bytes();
  }
  // At most, for so many keys, without DecodeMode.
  static std::size_t Bytes(std::int64_t rows, std::int64_t keys, std::int64_t value_dim) {
    return static_cast<std::size_t>(keys + kRun) *
               (static_cast<std::size_t>(rows) * 8 + 3 * 4 + 8 + SolveMemory::kBytes) +
           static_cast<std::size_t>((keys / kRun + 2) * rows * Padded(value_dim)) * sizeof(float);
  }
};

// answers: [query.rows]; `context` may split the keys among threads.
void Attend(const Functions& functions, const Context& context, const Query& query,
            Scratch& scratch, Answer* answers);

}  // namespace tsallis::decode
