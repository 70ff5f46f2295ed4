#include "stable/cache.h"

#include <algorithm>
#include <initializer_list>
#include <map>
#include <mutex>
#include <new>
#include <stdexcept>
#include <unordered_map>
#include <utility>

#include "stable/device.h"

namespace tsallis::stable {
namespace {

struct Registry {
  std::mutex lock;
  std::unordered_map<std::int64_t, std::shared_ptr<SharedCache>> caches;
  std::int64_t next = 1;
};

// Never destroyed: sequences may be freed while the program ends.
Registry& Caches() {
  static auto* const registry = new Registry;
  return *registry;
}

// Null: it is not there.
std::shared_ptr<SharedCache> Find(std::int64_t number) {
  Registry& registry = Caches();
  const std::lock_guard guard(registry.lock);
  const auto found = registry.caches.find(number);
  return found == registry.caches.end() ? nullptr : found->second;
}

void CheckSizes(const char* name, const Tensor& tensor, Sizes sizes) {
  const bool fits = std::ranges::equal(tensor.sizes(), sizes);
  if (fits && tensor.device().is_cpu() && tensor.dense()) return;
  throw InvalidArgument(name, "a dense CPU tensor of shape " + Text(sizes),
                        Text(tensor.sizes()) + " on " + tensor.device().Name());
}

std::int32_t TorchDType(DType dtype) {
  return dtype == DType::kFloat32    ? dtypes::kFloat32
         : dtype == DType::kBFloat16 ? dtypes::kBFloat16
                                     : dtypes::kFloat16;
}

void CheckDType(const char* name, const Tensor& tensor, DType dtype) {
  const std::int32_t expected = TorchDType(dtype);
  if (tensor.dtype() == expected) return;
  throw InvalidArgument(name, "the dtype of the cache, " + DTypeName(expected),
                        DTypeName(tensor.dtype()));
}

}  // namespace

std::int64_t NewCache(const KvCacheShape& shape, const KvCacheOptions& options) {
  auto cache = Renamed([&] { return std::make_shared<SharedCache>(shape, options); });
  Registry& registry = Caches();
  const std::lock_guard guard(registry.lock);
  registry.caches.emplace(registry.next, std::move(cache));
  return registry.next++;
}

std::shared_ptr<SharedCache> CacheOf(const Tensor& number) {
  if (number.dtype() != dtypes::kInt64 || number.numel() != 1 || !number.device().is_cpu()) {
    throw InvalidArgument("cache", "the tensor of a KVCache, int64 [1]",
                          DTypeName(number.dtype()) + ' ' + Text(number.sizes()));
  }
  auto cache = Find(*number.data_as<std::int64_t>());
  if (cache) return cache;
  throw InvalidArgument("cache", "one that is alive", "one whose KVCache has been deleted");
}

struct SharedCache::State {
  State(const KvCacheShape& shape, const KvCacheOptions& options) : cache(shape, options) {}

  KvCache cache;
  std::mutex lock;
  // Calls that read a sequence now; -1: one changes it.
  std::unordered_map<std::int64_t, std::int64_t> users;
};

// Says that a call reads or changes sequences, as long as it lives.
class SharedCache::Claim {
 public:
  Claim(State& state, std::vector<std::int64_t> sequences, bool changes)
      : state_(state), sequences_(std::move(sequences)), changes_(changes) {
    const std::lock_guard guard(state_.lock);
    for (std::size_t i = 0; i < sequences_.size(); ++i) {
      std::int64_t& users = state_.users[sequences_[i]];
      // A call may name a sequence twice: the kernels say what they think of that.
      const bool own = changes && std::find(sequences_.begin(), sequences_.begin() + i,
                                            sequences_[i]) != sequences_.begin() + i;
      if (!own && (changes ? users != 0 : users < 0)) {
        const bool changed = users < 0;
        for (std::size_t done = 0; done < i; ++done) Release(sequences_[done]);
        throw InvalidArgument(
            "sequences", "one that no other call uses while it is changed",
            changed ? "one that another thread changes now" : "one that another thread reads now");
      }
      if (changes) {
        users = -1;
      } else {
        ++users;
      }
    }
  }
  ~Claim() {
    const std::lock_guard guard(state_.lock);
    for (const std::int64_t sequence : sequences_) Release(sequence);
  }
  Claim(const Claim&) = delete;
  Claim& operator=(const Claim&) = delete;

 private:
  void Release(std::int64_t sequence) {
    const auto found = state_.users.find(sequence);
    if (found == state_.users.end()) return;
    if (changes_ || --found->second == 0) state_.users.erase(found);
  }

  State& state_;
  std::vector<std::int64_t> sequences_;
  bool changes_;
};

SharedCache::SharedCache(const KvCacheShape& shape, const KvCacheOptions& options)
    : state_(std::make_unique<State>(shape, options)) {}
SharedCache::~SharedCache() = default;

std::int64_t SharedCache::Create() { return state_->cache.Create(); }

std::int64_t SharedCache::Fork(std::int64_t from, std::int64_t length) {
  const Claim claim(*state_, {from}, false);
  return Renamed([&] { return state_->cache.Fork(from, length); });
}

void SharedCache::Free(std::int64_t sequence) {
  const Claim claim(*state_, {sequence}, true);
  Renamed([&] { state_->cache.Free(sequence); });
}

void SharedCache::Truncate(std::int64_t sequence, std::int64_t length) {
  const Claim claim(*state_, {sequence}, true);
  Renamed([&] { state_->cache.Truncate(sequence, length); });
}

std::int64_t SharedCache::Length(std::int64_t sequence, std::int64_t layer) const {
  const Claim claim(*state_, {sequence}, false);
  return Renamed([&] {
    return layer < 0 ? state_->cache.Length(sequence) : state_->cache.Length(sequence, layer);
  });
}

void SharedCache::Append(std::int64_t layer, const std::vector<std::int64_t>& sequences,
                         const Tensor& k, const Tensor& v) {
  KvCache& cache = state_->cache;
  const KvCacheShape& shape = cache.shape();
  const auto count = static_cast<std::int64_t>(sequences.size());
  const std::int64_t tokens = k.dim() == 4 ? k.size(2) : 0;
  const std::int64_t k_sizes[] = {count, shape.kv_heads, tokens, shape.head_dim};
  const std::int64_t v_sizes[] = {count, shape.kv_heads, tokens, shape.value_dim};
  CheckSizes("k", k, k_sizes);
  CheckSizes("v", v, v_sizes);
  CheckDType("k", k, shape.dtype);
  CheckDType("v", v, shape.dtype);
  const Claim claim(*state_, sequences, true);
  const auto entry = [](const Tensor& tensor, std::int64_t i) {
    ConstArray4 view = View(tensor);
    const std::size_t bytes = SizeOf(view.dtype);
    view.data = static_cast<const char*>(view.data) +
                i * tensor.stride(0) * static_cast<std::int64_t>(bytes);
    return view;
  };
  for (std::int64_t i = 0; i < count; ++i) {
    try {
      Renamed([&] {
        cache.Append(TorchContext(), sequences[static_cast<std::size_t>(i)], layer, entry(k, i),
                     entry(v, i), tokens);
      });
    } catch (...) {
      // All of them or none.
      for (std::int64_t done = 0; done < i; ++done) {
        const std::int64_t sequence = sequences[static_cast<std::size_t>(done)];
        cache.TruncateLayer(sequence, layer, cache.Length(sequence, layer) - tokens);
      }
      try {
        throw;
      } catch (const std::bad_alloc&) {
        throw InvalidArgument("k", "as many tokens as there is memory for", std::to_string(tokens));
      } catch (const std::length_error&) {
        throw InvalidArgument("k", "as many tokens as there is memory for", std::to_string(tokens));
      }
    }
  }
}

std::array<Tensor, 2> SharedCache::Read(std::int64_t sequence, std::int64_t layer) const {
  const Claim claim(*state_, {sequence}, false);
  return Renamed([&] {
    const KvCacheShape& shape = state_->cache.shape();
    const std::int64_t length = state_->cache.Length(sequence, layer);
    const std::int64_t k_sizes[] = {1, shape.kv_heads, length, shape.head_dim};
    const std::int64_t v_sizes[] = {1, shape.kv_heads, length, shape.value_dim};
    std::array<Tensor, 2> copies = {Empty(k_sizes, TorchDType(shape.dtype), Device::Cpu()),
                                    Empty(v_sizes, TorchDType(shape.dtype), Device::Cpu())};
    state_->cache.Read(sequence, layer, 0, length, Write(copies[0]), Write(copies[1]));
    return copies;
  });
}

void SharedCache::Save(std::int64_t sequence, const std::string& path) const {
  const Claim claim(*state_, {sequence}, false);
  Renamed([&] { state_->cache.Save(sequence, path); });
}

std::int64_t SharedCache::Load(const std::string& path) {
  return Renamed([&] { return state_->cache.Load(TorchContext(), path); });
}

KvCacheUse SharedCache::Use() const { return state_->cache.Use(); }

std::array<Tensor, 9> SharedCache::Decode(const Tensor& q, const DecodeCall& call,
                                          AttentionArguments& arguments) const {
  const KvCache& cache = state_->cache;
  const KvCacheShape& shape = cache.shape();
  const auto batch = static_cast<std::int64_t>(call.sequences.size());
  const std::int64_t heads = q.dim() == 4 ? q.size(1) : 0, q_len = q.dim() == 4 ? q.size(2) : 0;
  const std::int64_t q_sizes[] = {batch, heads, q_len, shape.head_dim};
  CheckSizes("q", q, q_sizes);
  CheckDType("q", q, shape.dtype);
  if (call.begin && call.begin->size() != call.sequences.size()) {
    throw InvalidArgument("begin", std::to_string(batch) + " tokens, one for each sequence",
                          std::to_string(call.begin->size()));
  }
  // In the place of keys and values, which the cache has.
  const std::int64_t kv_sizes[] = {batch, shape.kv_heads, 0, shape.head_dim};
  const std::int64_t kv_strides[] = {0, 0, 0, 1};
  const Tensor stand_in = Restrided(q, kv_sizes, kv_strides);
  arguments.Check(q, stand_in, stand_in);
  arguments.Bind(q, stand_in, stand_in, Reader::kHost);
  DecodeParams params;
  static_cast<AttentionParams&>(params) = arguments.params;
  params.kv_heads = 0;  // all of the cache's
  params.layer = call.layer;
  params.sequences = call.sequences.data();
  if (call.begin) params.begin = call.begin->data();
  params.mode = call.mode;
  const std::int64_t out_sizes[] = {batch, heads, q_len, shape.value_dim};
  std::array<Tensor, 9> decoded;
  decoded[0] = Empty(out_sizes, TorchDType(shape.dtype), Device::Cpu());
  DecodeOutputs outputs{.out = Write(decoded[0])};
  const auto statistic = [&](int index, auto*& member) {
    if ((call.wanted >> index & 1) == 0) return;
    using Number = std::remove_pointer_t<std::remove_reference_t<decltype(member)>>;
    Tensor& made = decoded[static_cast<std::size_t>(index + 1)];
    made = Empty(Sizes(out_sizes, 3),
                 std::is_same_v<Number, double> ? dtypes::kFloat64 : dtypes::kInt64, Device::Cpu());
    member = made.mutable_as<Number>();
  };
  statistic(0, outputs.tau);
  statistic(1, outputs.support_size);
  statistic(2, outputs.entropy);
  statistic(3, outputs.maximum);
  statistic(4, outputs.certificate);
  statistic(5, outputs.lost);
  statistic(6, outputs.scored);
  statistic(7, outputs.bytes_read);
  const Claim claim(*state_, call.sequences, false);
  Renamed([&] { tsallis::Decode(TorchContext(), cache, params, outputs); });
  return decoded;
}

}  // namespace tsallis::stable

#define TSALLIS_EXPORT extern "C" __attribute__((visibility("default")))
TSALLIS_EXPORT void TsallisDeleteCache(std::int64_t number) {
  const auto last = tsallis::stable::Find(number);  // dies outside of the lock
  auto& registry = tsallis::stable::Caches();
  const std::lock_guard guard(registry.lock);
  registry.caches.erase(number);
}

TSALLIS_EXPORT void TsallisFreeSequence(std::int64_t cache, std::int64_t sequence) {
  if (const auto found = tsallis::stable::Find(cache)) found->Free(sequence);
}
