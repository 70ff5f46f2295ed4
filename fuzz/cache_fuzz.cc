// libFuzzer on the public interface of the cache: histories of sequences that are made, appended
// to, forked, truncated, saved, loaded and freed, with any options, values and mistakes. Beside the
// cache stand plain vectors of the same tokens.
//   - a call either throws what kv_cache.h says and changes nothing, or does what it says
//   - what is read is what was appended, to the bit
//   - exact decoding has the bits of attention on the same keys in one array, for any number of
//     threads; softmax within epsilon loses no more; what a certificate promises holds
//   - a file that was changed is refused or gives the same tokens; nothing is left behind
//
// `make fuzz` builds and runs it; an input that fails is left in build-fuzz/ and repeated by
// build-fuzz/bin/cache_fuzz FILE.
#include <fuzzer/FuzzedDataProvider.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "simplex/elements.h"
#include "tsallis/attention.h"
#include "tsallis/error.h"
#include "tsallis/kv_cache.h"

namespace {

using tsallis::ConstArray4;
using tsallis::DecodeKeys;
using tsallis::DType;
using tsallis::KvCache;

constexpr std::int64_t kMost = 300;  // tokens of a sequence

void Require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "cache_fuzz: %s\n", what);
  std::abort();
}

// Tokens of one layer: [tokens][kv_heads][columns], as bytes of the dtype.
struct Layer {
  std::vector<std::byte> k, v;
  std::int64_t tokens = 0;
};
using Tokens = std::vector<Layer>;

class History {
 public:
  explicit History(FuzzedDataProvider& bytes) : bytes_(bytes) {
    shape_.layers = Pick(1, 2);
    shape_.kv_heads = Pick(1, 2);
    shape_.head_dim = Pick(1, 20);
    shape_.value_dim = Pick(1, 20);
    shape_.dtype = static_cast<DType>(Pick(0, 2));
    options_.screen = Chance(70) ? tsallis::KeyScreen::kBytes : tsallis::KeyScreen::kNone;
    options_.ranges = Chance(50);
    options_.moments = Chance(50);
    tame_ = Chance(70);
    const std::int64_t page = KvCache(shape_, options_).Use().page_bytes;
    if (Chance(30)) options_.max_bytes = page * Pick(1, 12);
  }

  void Run() {
    KvCache cache(shape_, options_);
    cache_ = &cache;
    while (bytes_.remaining_bytes() > 4) Step();
    for (const auto& [sequence, tokens] : plain_) {
      CheckRows(sequence, tokens);
      cache.Free(sequence);
    }
    Require(cache.Use().pages == 0 && cache.Use().sequences == 0, "pages are lost");
  }

 private:
  bool Chance(int percent) { return bytes_.ConsumeIntegralInRange<int>(0, 99) < percent; }
  std::int64_t Pick(std::int64_t low, std::int64_t high) {
    return bytes_.ConsumeIntegralInRange<std::int64_t>(low, high);
  }
  KvCache::Sequence Any() {
    return std::next(plain_.begin(), Pick(0, static_cast<std::int64_t>(plain_.size()) - 1))->first;
  }
  std::size_t Size(std::int64_t columns) const {
    return static_cast<std::size_t>(shape_.kv_heads * columns) * tsallis::SizeOf(shape_.dtype);
  }
  // [1, kv_heads, tokens, columns] of tokens behind each other.
  ConstArray4 View(const std::vector<std::byte>& rows, std::int64_t columns) const {
    return {rows.data(), shape_.dtype, {0, columns, shape_.kv_heads * columns, 1}};
  }

  void Step();
  void Append();
  void Decode(KvCache::Sequence sequence, std::int64_t layer);
  void SaveAndLoad();
  void Mistake();
  double Value();
  std::vector<std::byte> Draw(std::int64_t count);
  void CheckRows(KvCache::Sequence sequence, const Tokens& tokens) const;

  FuzzedDataProvider& bytes_;
  tsallis::KvCacheShape shape_;
  tsallis::KvCacheOptions options_;
  bool tame_ = true;
  KvCache* cache_ = nullptr;
  std::map<KvCache::Sequence, Tokens> plain_;
};

// Mostly moderate numbers, a few specials; any bits at all if not tame.
double History::Value() {
  const auto byte = bytes_.ConsumeIntegral<std::uint8_t>();
  if (byte == 255) {
    const double specials[] = {NAN, INFINITY, -INFINITY, 0.0, -0.0, 1e-30, 100.0, -100.0};
    return specials[bytes_.ConsumeIntegral<std::uint8_t>() % 8];
  }
  if (!tame_ && byte >= 224) {
    return std::bit_cast<float>(bytes_.ConsumeIntegral<std::uint32_t>());
  }
  return (static_cast<int>(byte) - 112) / 32.0;
}

std::vector<std::byte> History::Draw(std::int64_t count) {
  std::vector<std::byte> numbers(static_cast<std::size_t>(count) * tsallis::SizeOf(shape_.dtype));
  double pool[7];
  for (double& value : pool) value = Value();
  for (std::int64_t i = 0; i < count; ++i) {
    const double shift = (static_cast<std::uint64_t>(i) * 2654435761u >> 7) % 17 / 16.0;
    tsallis::StoreElement(numbers.data(), shape_.dtype, i, pool[i % 7] * (0.5 + shift));
  }
  return numbers;
}

void History::CheckRows(KvCache::Sequence sequence, const Tokens& tokens) const {
  for (std::int64_t layer = 0; layer < shape_.layers; ++layer) {
    const Layer& own = tokens[static_cast<std::size_t>(layer)];
    Require(cache_->Length(sequence, layer) == own.tokens, "a length is wrong");
    std::vector<std::byte> k(own.k.size() + 1), v(own.v.size() + 1);
    const auto out = [&](std::vector<std::byte>& rows, std::int64_t columns) {
      return tsallis::MutableArray4{
          rows.data(), shape_.dtype, {0, columns, shape_.kv_heads * columns, 1}};
    };
    cache_->Read(sequence, layer, 0, own.tokens, out(k, shape_.head_dim), out(v, shape_.value_dim));
    const auto same = [&](const std::vector<std::byte>& a, const std::vector<std::byte>& b) {
      const auto count = static_cast<std::int64_t>(a.size() / tsallis::SizeOf(shape_.dtype));
      for (std::int64_t i = 0; i < count; ++i) {
        const auto x = tsallis::LoadElement<double>(a.data(), shape_.dtype, i);
        const auto y = tsallis::LoadElement<double>(b.data(), shape_.dtype, i);
        if (x != y && !(std::isnan(x) && std::isnan(y))) return false;
      }
      return true;
    };
    Require(same(own.k, k) && same(own.v, v), "what was appended is not what is read");
  }
}

void History::Append() {
  const KvCache::Sequence sequence = Any();
  Tokens& tokens = plain_.at(sequence);
  const std::int64_t count = Chance(30) ? Pick(0, 140) : Pick(0, 3);
  for (std::int64_t layer = 0; layer < shape_.layers; ++layer) {
    if (Chance(5)) continue;  // layers need not be of one length
    Layer& own = tokens[static_cast<std::size_t>(layer)];
    if (own.tokens + count > kMost) continue;
    const std::vector<std::byte> k = Draw(count * shape_.kv_heads * shape_.head_dim);
    const std::vector<std::byte> v = Draw(count * shape_.kv_heads * shape_.value_dim);
    const tsallis::KvCacheUse before = cache_->Use();
    try {
      cache_->Append({.threads = 1}, sequence, layer, View(k, shape_.head_dim),
                     View(v, shape_.value_dim), count);
    } catch (const tsallis::CacheFull&) {
      Require(options_.max_bytes > 0, "full without a limit");
      Require(cache_->Use().pages == before.pages, "a refused append took pages");
      continue;
    }
    Require(options_.max_bytes == 0 || cache_->Use().bytes <= options_.max_bytes,
            "more bytes than allowed");
    own.k.insert(own.k.end(), k.begin(), k.end());
    own.v.insert(own.v.end(), v.begin(), v.end());
    own.tokens += count;
  }
}

void History::Decode(KvCache::Sequence sequence, std::int64_t layer) {
  const Layer& own = plain_.at(sequence)[static_cast<std::size_t>(layer)];
  if (own.tokens == 0) return;
  tsallis::DecodeParams params;
  params.layer = layer;
  params.sequences = &sequence;
  params.batch = 1;
  params.heads = shape_.kv_heads * Pick(1, 3);
  const auto rows = static_cast<std::size_t>(params.heads);
  const std::vector<std::byte> q = Draw(params.heads * shape_.head_dim);
  params.q = {q.data(), shape_.dtype, {0, shape_.head_dim, shape_.head_dim, 1}};
  params.map = Chance(50) ? tsallis::RowMap::kEntmax : tsallis::RowMap::kSoftmax;
  const double alphas[] = {1.5, 2.0, 1.1, 1.7, 4.0, 1.0};
  params.alpha = alphas[Pick(0, 5)];
  if (Chance(30)) params.mask.left = Pick(0, kMost);
  const std::int64_t begin = Chance(30) ? Pick(0, own.tokens - 1) : 0;
  params.begin = &begin;
  std::vector<float> slopes(rows), scales(rows);
  std::vector<double> sinks(rows);
  for (std::size_t h = 0; h < rows; ++h) {
    slopes[h] = static_cast<float>(Pick(-20, 100)) / 100.0f;
    scales[h] = static_cast<float>(Pick(-20, 40)) / 10.0f;
    sinks[h] = static_cast<double>(Pick(-40, 40)) / 10.0;
  }
  if (Chance(40)) params.terms.alibi_slopes = {slopes.data(), DType::kFloat32, {0, 1, 0, 1}};
  if (Chance(30)) params.terms.length_scale = {scales.data(), DType::kFloat32, {0, 1, 0, 1}};
  if (Chance(20)) params.terms.sink = sinks.data();
  if (Chance(20)) params.terms.softcap = static_cast<double>(Pick(1, 60));
  if (Chance(20)) params.terms.scale_invariant = static_cast<double>(Pick(1, 100));
  if (params.terms.scale_invariant > 0.0 && Chance(40)) {
    const double alpha = static_cast<double>(Pick(5, 400)) / 100.0;
    params.terms.scale_invariant_alpha = alpha;
    params.terms.scale_invariant_beta =
        std::max(1e-3, alpha * std::log(alpha)) + static_cast<double>(Pick(1, 300)) / 100.0;
  }
  if (Chance(50)) params.mode.keys = static_cast<DecodeKeys>(Pick(0, 4));
  params.mode.epsilon = static_cast<double>(Pick(1, 999)) / 1000.0;
  params.mode.budget = Pick(1, kMost);
  params.mode.first = Pick(0, 9);

  const std::size_t out_size = rows * static_cast<std::size_t>(shape_.value_dim);
  struct Answer {
    std::vector<float> out;
    std::vector<double> tau, certificate, lost;
    std::vector<std::int64_t> support, scored, read;
  };
  const auto room = [&] {
    return Answer{std::vector<float>(out_size),    std::vector<double>(rows),
                  std::vector<double>(rows),       std::vector<double>(rows),
                  std::vector<std::int64_t>(rows), std::vector<std::int64_t>(rows),
                  std::vector<std::int64_t>(rows)};
  };
  const auto view = [&](Answer& answer) {
    return tsallis::MutableArray4{
        answer.out.data(), shape_.dtype, {0, shape_.value_dim, shape_.value_dim, 1}};
  };
  const auto run = [&](const tsallis::DecodeMode& mode, int threads) {
    tsallis::DecodeParams own_params = params;
    own_params.mode = mode;
    Answer answer = room();
    tsallis::Decode({.threads = threads}, *cache_, own_params,
                    {.out = view(answer),
                     .tau = answer.tau.data(),
                     .support_size = answer.support.data(),
                     .certificate = answer.certificate.data(),
                     .lost = answer.lost.data(),
                     .scored = answer.scored.data(),
                     .bytes_read = answer.read.data()});
    return answer;
  };
  const auto same = [](const Answer& a, const Answer& b) {
    return std::memcmp(a.out.data(), b.out.data(), a.out.size() * sizeof(float)) == 0 &&
           std::memcmp(a.tau.data(), b.tau.data(), a.tau.size() * sizeof(double)) == 0 &&
           a.support == b.support;
  };
  const bool needs = (params.mode.keys == DecodeKeys::kTopPages && !options_.ranges) ||
                     (params.mode.keys == DecodeKeys::kGaussianPages && !options_.moments);
  try {
    const Answer found = run(params.mode, 1);
    Require(!needs, "a mode without what it needs was accepted");
    Require(same(found, run(params.mode, 3)), "other bits with other threads");
    const Answer exact = run({}, 1);
    const bool softmax = params.map == tsallis::RowMap::kSoftmax || params.alpha == 1.0;
    for (std::size_t h = 0; h < rows; ++h) {
      Require(found.read[h] >= 0 && found.scored[h] <= own.tokens, "counts that cannot be");
      if (std::isnan(found.tau[h]) || std::isnan(exact.tau[h])) continue;
      if (params.mode.keys == DecodeKeys::kWithin && softmax) {
        Require(found.certificate[h] <= params.mode.epsilon, "more is lost than epsilon");
      }
      if (!tame_) continue;  // roundings of large scores decide
      if (softmax) {
        Require(found.lost[h] <= found.certificate[h] + 1e-4, "a certificate is too small");
      } else if (found.certificate[h] <= 0.0) {
        Require(found.tau[h] == exact.tau[h] && found.support[h] == exact.support[h],
                "a certificate promises what is not so");
      }
    }
    // Puts the same keys into one array.
    tsallis::AttentionParams arrays;
    arrays.batch = 1;
    arrays.heads = params.heads;
    arrays.kv_heads = shape_.kv_heads;
    arrays.q_len = 1;
    arrays.k_len = own.tokens;
    arrays.head_dim = shape_.head_dim;
    arrays.value_dim = shape_.value_dim;
    arrays.q = params.q;
    arrays.k = View(own.k, shape_.head_dim);
    arrays.v = View(own.v, shape_.value_dim);
    arrays.map = params.map;
    arrays.alpha = params.alpha;
    arrays.mask.causal = true;
    arrays.mask.left = params.mask.left;
    arrays.ranges.k_begin = &begin;
    arrays.ranges.k_end = &own.tokens;
    arrays.terms = params.terms;
    Answer expected = room();
    tsallis::AttentionForward({.threads = 1}, arrays,
                              {.out = view(expected),
                               .tau = expected.tau.data(),
                               .support_size = expected.support.data()});
    if (tame_) Require(same(exact, expected), "other bits than attention on arrays");
  } catch (const tsallis::InvalidArgument&) {
    Require(needs, "a right call was refused");
  }
}

void History::SaveAndLoad() {
  static const std::string path =
      (std::filesystem::temp_directory_path() / ("tsallis-cache-fuzz-" + std::to_string(getpid())))
          .string();
  const KvCache::Sequence sequence = Any();
  cache_->Save(sequence, path);
  const bool spoil = Chance(50);
  if (spoil) {
    std::ifstream in(path, std::ios::binary);
    std::string contents{std::istreambuf_iterator<char>(in), {}};
    const auto at =
        static_cast<std::size_t>(Pick(0, static_cast<std::int64_t>(contents.size()) - 1));
    if (Chance(50)) {
      contents.resize(at);
    } else {
      contents[at] = static_cast<char>(contents[at] ^ (1 << Pick(0, 7)));
    }
    std::ofstream(path, std::ios::binary) << contents;
  }
  const tsallis::KvCacheUse before = cache_->Use();
  try {
    const KvCache::Sequence loaded = cache_->Load({.threads = 1}, path);
    Require(!spoil, "a damaged file was read");
    plain_[loaded] = plain_.at(sequence);
    CheckRows(loaded, plain_.at(loaded));
  } catch (const tsallis::InvalidArgument&) {
    Require(spoil, "a whole file was refused");
    Require(cache_->Use().sequences == before.sequences, "a refused file left a sequence");
    Require(cache_->Use().pages == before.pages, "a refused file left pages");
  } catch (const tsallis::CacheFull&) {
    Require(options_.max_bytes > 0, "full without a limit");
    Require(cache_->Use().pages == before.pages, "a file that did not fit left pages");
  }
  std::filesystem::remove(path);
}

// A call that must be refused.
void History::Mistake() {
  const KvCache::Sequence sequence = Any();
  const auto refused = [](const auto& call) {
    try {
      call();
    } catch (const tsallis::InvalidArgument&) {
      return;
    }
    Require(false, "a mistake was accepted");
  };
  switch (Pick(0, 5)) {
    case 0: refused([&] { cache_->Fork(sequence, kMost + 1); }); break;
    case 1: refused([&] { cache_->Truncate(sequence, -1); }); break;
    case 2: refused([&] { cache_->Truncate(-7, 0); }); break;
    case 3: refused([&] { cache_->Length(sequence, shape_.layers); }); break;
    case 4: refused([&] { cache_->Append({.threads = 1}, sequence, 0, {}, {}, 1); }); break;
    default: refused([&] { cache_->Read(sequence, 0, 0, kMost + 1, {}, {}); });
  }
}

void History::Step() {
  const std::int64_t what = plain_.empty() ? 0 : Pick(0, 15);
  if (what == 0 && plain_.size() < 12) {
    plain_[cache_->Create()].resize(static_cast<std::size_t>(shape_.layers));
  } else if (what <= 5) {
    if (!plain_.empty()) Append();
  } else if (what <= 7) {
    if (plain_.size() >= 12) return;
    const KvCache::Sequence from = Any();
    const std::int64_t most = cache_->Length(from);
    const std::int64_t length = Chance(50) ? -1 : Pick(0, most);
    const KvCache::Sequence fork = cache_->Fork(from, length);
    Tokens tokens = plain_.at(from);
    for (Layer& layer : tokens) {
      layer.tokens = length < 0 ? most : length;
      layer.k.resize(static_cast<std::size_t>(layer.tokens) * Size(shape_.head_dim));
      layer.v.resize(static_cast<std::size_t>(layer.tokens) * Size(shape_.value_dim));
    }
    plain_[fork] = std::move(tokens);
  } else if (what <= 9) {
    const KvCache::Sequence sequence = Any();
    const std::int64_t length = Pick(0, kMost), only = Pick(-2, shape_.layers - 1);
    if (only < 0) cache_->Truncate(sequence, length);
    if (only >= 0) cache_->TruncateLayer(sequence, only, length);
    Tokens& tokens = plain_.at(sequence);
    for (std::int64_t i = 0; i < shape_.layers; ++i) {
      Layer& layer = tokens[static_cast<std::size_t>(i)];
      if (only >= 0 && i != only) continue;
      layer.tokens = std::min(layer.tokens, length);
      layer.k.resize(static_cast<std::size_t>(layer.tokens) * Size(shape_.head_dim));
      layer.v.resize(static_cast<std::size_t>(layer.tokens) * Size(shape_.value_dim));
    }
  } else if (what == 10) {
    const KvCache::Sequence sequence = Any();
    CheckRows(sequence, plain_.at(sequence));
    cache_->Free(sequence);
    plain_.erase(sequence);
  } else if (what == 11) {
    SaveAndLoad();
  } else if (what == 12) {
    Mistake();
  } else {
    Decode(Any(), Pick(0, shape_.layers - 1));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  FuzzedDataProvider bytes(data, size);
  History(bytes).Run();
  return 0;
}
