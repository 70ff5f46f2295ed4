// The cache of keys and values for torch: a small tensor holds a cache's number, and a registry the
// caches. Operators take the tensor, so that compiled graphs keep the order of what changes it.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "stable/arguments.h"
#include "stable/tensor.h"
#include "tsallis/kv_cache.h"

namespace tsallis::stable {

class SharedCache;

// Returns the number of a new cache; it lives until TsallisDeleteCache().
std::int64_t NewCache(const KvCacheShape& shape, const KvCacheOptions& options);
// The cache whose number the tensor (int64 [1], on the CPU) holds. Throws InvalidArgument for one
// that is not there any more.
std::shared_ptr<SharedCache> CacheOf(const Tensor& number);

// A cache that several threads may hold. While a call changes a sequence, another call that uses it
// gets an InvalidArgument in place of what it would find.
class SharedCache {
 public:
  SharedCache(const KvCacheShape& shape, const KvCacheOptions& options);
  ~SharedCache();

  std::int64_t Create();
  std::int64_t Fork(std::int64_t from, std::int64_t length);
  void Free(std::int64_t sequence);
  void Truncate(std::int64_t sequence, std::int64_t length);
  std::int64_t Length(std::int64_t sequence, std::int64_t layer) const;  // -1: of every layer
  // k, v: [sequences, kv_heads, tokens, head_dim or value_dim]. All sequences get them or none.
  void Append(std::int64_t layer, const std::vector<std::int64_t>& sequences, const Tensor& k,
              const Tensor& v);
  // [1, kv_heads, tokens, head_dim or value_dim]
  std::array<Tensor, 2> Read(std::int64_t sequence, std::int64_t layer) const;
  void Save(std::int64_t sequence, const std::string& path) const;
  std::int64_t Load(const std::string& path);
  KvCacheUse Use() const;

  struct DecodeCall {
    std::int64_t layer = 0;
    const std::vector<std::int64_t>& sequences;
    const std::optional<std::vector<std::int64_t>>& begin;
    DecodeMode mode;
    std::int64_t wanted = 0;
  };
  // The output, and the statistics in the order of DecodeOutputs: those whose bit of `wanted` is 0
  // are empty.
  std::array<Tensor, 9> Decode(const Tensor& q, const DecodeCall& call,
                               AttentionArguments& arguments) const;

 private:
  struct State;
  class Claim;
  std::unique_ptr<State> state_;
};

}  // namespace tsallis::stable

// What Python's garbage collector calls, past torch: it may run while something traces. A cache
// that is not there any more has no sequences to free.
extern "C" void TsallisDeleteCache(std::int64_t number);
extern "C" void TsallisFreeSequence(std::int64_t cache, std::int64_t sequence);
