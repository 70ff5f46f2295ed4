// Keys and values of sequences that grow, and attention on them (docs/definitions.md, D1 and D2).
//
// A cache holds the keys and values of every layer of a model, in pages of 64 tokens. Sequences own
// pages through tables: a fork shares all pages of what it comes from, and a page is copied when a
// sequence that shares it writes to it. Beside the keys a page keeps a copy of them in bytes, with
// what rounding took from each: Decode() screens all keys by these, scores exactly those that may
// have a weight, and proves that no other has one.
//
// Threads: while a call changes a sequence (Append, Truncate, Free), no other call may use this
// sequence. Everything else may happen at once: any number of threads may read one sequence, and
// use different sequences, also such as share pages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>

#include "tsallis/attention.h"
#include "tsallis/rows.h"
#include "tsallis/types.h"

namespace tsallis {

// An append did not fit into KvCacheOptions::max_bytes. Nothing was appended.
class CacheFull : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct KvCacheShape {
  std::int64_t layers = 1;
  std::int64_t kv_heads = 1;
  std::int64_t head_dim = 64;      // 1 ... 512
  std::int64_t value_dim = 64;     // 1 ... 512
  DType dtype = DType::kBFloat16;  // float32, bfloat16 or float16
};

enum class KeyScreen : std::uint8_t {
  kNone,   // every key is scored from its row
  kBytes,  // head_dim + 12 bytes a key and key head
};

struct KvCacheOptions {
  KeyScreen screen = KeyScreen::kBytes;
  // DecodeKeys::kTopPages chooses pages by ranges, kGaussianPages by moments. Each takes
  // 8 (head_dim + 1) bytes a page, layer and key head, rounded up to a multiple of 64.
  bool ranges = false;         // least and largest number of every column of a page's keys
  bool moments = false;        // mean and variance of every column
  std::int64_t max_bytes = 0;  // of pages; 0: no limit
};

struct KvCacheUse {
  std::int64_t sequences = 0;
  std::int64_t pages = 0;         // in use
  std::int64_t shared_pages = 0;  // of them, by more than one sequence
  std::int64_t page_bytes = 0;    // of one, all layers
  std::int64_t bytes = 0;         // allocated, free pages too
};

class KvCache {
 public:
  using Sequence = std::int64_t;
  static constexpr std::int64_t kPage = 64;  // tokens

  // Throws InvalidArgument.
  explicit KvCache(const KvCacheShape& shape, const KvCacheOptions& options = {});
  ~KvCache();
  KvCache(const KvCache&) = delete;
  KvCache& operator=(const KvCache&) = delete;

  const KvCacheShape& shape() const;
  const KvCacheOptions& options() const;

  // An empty one.
  Sequence Create();
  // The first `length` tokens of another; negative: all that every layer has.
  Sequence Fork(Sequence from, std::int64_t length = -1);
  void Free(Sequence sequence);
  // Forgets the tokens from `length` on, in every layer, or in one.
  void Truncate(Sequence sequence, std::int64_t length);
  void TruncateLayer(Sequence sequence, std::int64_t layer, std::int64_t length);

  // Adds `count` tokens to one layer. k: [1, kv_heads, count, head_dim], v: [1, kv_heads, count,
  // value_dim], of the cache's dtype, any strides. Throws InvalidArgument, CacheFull and
  // std::bad_alloc, and then has added nothing.
  void Append(const Context& context, Sequence sequence, std::int64_t layer, const ConstArray4& k,
              const ConstArray4& v, std::int64_t count);

  // Tokens that a layer has; without a layer: that every layer has.
  std::int64_t Length(Sequence sequence, std::int64_t layer) const;
  std::int64_t Length(Sequence sequence) const;
  // Copies tokens [begin, end) of a layer out. k, v: as Append's; null data: not wanted.
  void Read(Sequence sequence, std::int64_t layer, std::int64_t begin, std::int64_t end,
            const MutableArray4& k, const MutableArray4& v) const;

  // A sequence as a file: rows of keys and values with checksums, which caches of the same shape
  // load whatever their options. The file is written beside `path` and renamed when it is complete.
  // A loaded sequence decodes to the same bits. Save() counts as reading. Both throw
  // std::system_error where the system refuses; Load() also InvalidArgument where the file is
  // damaged, cut short, not of this kind or of another shape, and CacheFull, and then has added
  // nothing.
  void Save(Sequence sequence, const std::string& path) const;
  Sequence Load(const Context& context, const std::string& path);

  KvCacheUse Use() const;

 private:
  friend class CacheReader;
  struct State;
  std::unique_ptr<State> state_;
};

// Which keys Decode() gives a weight.
enum class DecodeKeys : std::uint8_t {
  kExact,   // every key that has one
  kWithin,  // softmax: keys that hold at least 1 - epsilon of the mass, which is proved
  // Approximations, which prove nothing by themselves. kTopPages and kGaussianPages choose pages of
  // 64 keys for each query head, always with the newest page.
  kTopPages,       // the largest bounds by ranges (Quest: Tang et al. 2024, section 3.2)
  kGaussianPages,  // the largest quantiles of a page's best score by moments (EntmaxKV, 2026)
  kFirstAndLast,   // the first tokens and the newest (StreamingLLM: Xiao et al. 2024)
};

struct DecodeMode {
  DecodeKeys keys = DecodeKeys::kExact;
  double epsilon = 1e-3;       // kWithin: between 0 and 1. Entmax is exact
  std::int64_t budget = 1024;  // tokens, >= 1; kTopPages, kGaussianPages: whole pages, at least one
  std::int64_t first = 4;      // kFirstAndLast: of the budget, tokens at the beginning
  double quantile = 0.5;       // kGaussianPages: between 0 and 1, of the largest of 64 scores
};

// Attention of the newest tokens of sequences on all their tokens: query i of q_len stands at token
// Length - q_len + i, and sees no later one. The keys are the cache's, so k_len, head_dim,
// value_dim, k, v, ranges, mask.causal and mask.alignment are not used. Masks and a bias count
// tokens from 0 along their last axis. q_len is 1 unless it is set.
struct DecodeParams : AttentionParams {
  DecodeParams() { q_len = 1; }

  std::int64_t layer = 0;
  const KvCache::Sequence* sequences = nullptr;  // [batch]
  // Uses kv_heads of the cache's key heads: kv_first, kv_first + kv_step, ...; kv_heads = 0: all.
  std::int64_t kv_first = 0, kv_step = 1;
  // [batch]: tokens before this one are not seen (padding on the left); null: all are.
  const std::int64_t* begin = nullptr;
  // Modes other than kExact, and the last four outputs, need softmax, or entmax with alphas of 1 or
  // from 1.1 to 4. They refuse a boolean mask, a block mask and a bias.
  DecodeMode mode;
};

// Has the members of AttentionOutputs; everything but `out` may be null. Where a mode leaves keys
// out, tau, support, entropy and maximum are those of the keys that were read.
struct DecodeOutputs {
  MutableArray4 out;  // [batch, heads, q_len, value_dim], the dtype of q
  // [batch, heads, q_len] each
  double* tau = nullptr;
  std::int64_t* support_size = nullptr;
  double* entropy = nullptr;
  double* maximum = nullptr;
  // Entmax: the largest bound of a key that was not scored, minus tau, in z = (alpha - 1) s; 0 or
  // less proves that the output is exact, and -inf says that every key was scored. Softmax: an
  // upper bound of the part of the mass on keys that were not scored; 0 if there are none. An
  // approximation reads the bytes of all keys for it (in a cache without bytes, their rows).
  double* certificate = nullptr;
  // The part of the weights that the exact answer gives to keys that were not scored: costs a pass
  // over all rows of keys.
  double* lost = nullptr;
  std::int64_t* scored = nullptr;  // keys that were scored from their rows
  // Bytes of keys, values and what is kept beside them that the answer needed; neither certificate
  // nor lost count. What heads read together is divided among them, so that the sum over heads is
  // what was read.
  std::int64_t* bytes_read = nullptr;
};

// With DecodeKeys::kExact the output of a query has the same bits as AttentionForward's for that
// query alone, on the same keys in one array. Pages, the screen, other queries and sequences of the
// call and the number of threads change no bit, unless a product of a query and a key is 2^24 or
// more. Some calls have the bits of AttentionForward on all queries of a sequence together instead:
// those that ask for none of the last four outputs, and have many queries of a sequence or
// something that DecodeParams::mode excludes. Many is more than one for every 128 keys, or more
// than 64 (8 for softmax, without bytes, or on a processor without AVX2). Throws InvalidArgument.
void Decode(const Context& context, const KvCache& cache, const DecodeParams& params,
            const DecodeOutputs& outputs);

}  // namespace tsallis
