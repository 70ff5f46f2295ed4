// libFuzzer on the public interface of attention: any sizes, options and values, wrong ones too. A
// call either throws InvalidArgument and writes nothing, or gives what attention.h promises:
//   - nothing outside of the results is written (marks around them), nothing else read
//     (AddressSanitizer)
//   - the same bits for another number of threads and other memory for saved lists
//   - out is within the visible values' range (for maps that sum to at most 1), 0 where nothing is
//     visible, NaN exactly where the definition in double (float64 arrays) has NaN, and gradients
//     are finite where its are
//
// `make fuzz` builds and runs it; an input that fails is left in build-fuzz/ and repeated by
// build-fuzz/bin/attention_fuzz FILE.
#include <fuzzer/FuzzedDataProvider.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "simplex/elements.h"
#include "tsallis/attention.h"
#include "tsallis/error.h"

namespace {

using tsallis::AttentionGradients;
using tsallis::AttentionOutputs;
using tsallis::AttentionParams;
using tsallis::DType;

constexpr std::int64_t kMost = 40;   // of q_len and k_len
constexpr std::int64_t kGuard = 64;  // elements before and after a result
constexpr double kMark = 7.25;       // exact in every dtype

void Require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "attention_fuzz: %s\n", what);
  std::abort();
}

// An array of the caller. `wide` holds the same values in float64.
struct Array {
  std::vector<std::byte> memory;
  std::vector<double> wide;
  std::int64_t strides[4] = {0, 0, 0, 1};
  std::int64_t start = 0;

  tsallis::ConstArray4 View(DType dtype, bool in_double) const {
    const void* data = in_double ? static_cast<const void*>(wide.data() + start)
                                 : memory.data() + start * tsallis::SizeOf(dtype);
    return {data,
            in_double ? DType::kFloat64 : dtype,
            {strides[0], strides[1], strides[2], strides[3]}};
  }
};

// A contiguous result between marks.
struct Result {
  Result(DType type, std::int64_t b, std::int64_t h, std::int64_t r, std::int64_t c)
      : dtype(type), count(b * h * r * c), strides{h * r * c, r * c, c, 1} {
    memory.resize(static_cast<std::size_t>(count + 2 * kGuard) * tsallis::SizeOf(dtype));
    for (std::int64_t i = 0; i < count + 2 * kGuard; ++i) {
      tsallis::StoreElement(memory.data(), dtype, i, kMark);
    }
  }
  tsallis::MutableArray4 View() {
    return {memory.data() + kGuard * tsallis::SizeOf(dtype),
            dtype,
            {strides[0], strides[1], strides[2], strides[3]}};
  }
  double At(std::int64_t i) const {
    return tsallis::LoadElement<double>(memory.data(), dtype, kGuard + i);
  }
  void CheckGuards() const {
    for (std::int64_t i = 0; i < kGuard; ++i) {
      Require(At(-1 - i) == kMark && At(count + i) == kMark, "wrote outside of a result");
    }
  }
  bool Untouched() const {
    for (std::int64_t i = 0; i < count; ++i) {
      if (At(i) != kMark) return false;
    }
    return true;
  }

  DType dtype;
  std::int64_t count;
  std::int64_t strides[4];
  std::vector<std::byte> memory;
};

// One call's arguments, drawn from the fuzzer's bytes.
class Input {
 public:
  explicit Input(FuzzedDataProvider& bytes) : bytes_(bytes) { Draw(); }

  bool in_double_possible() const { return dtype_ != DType::kFloat64; }
  bool tame() const { return tame_; }
  DType dtype() const { return dtype_; }
  const AttentionParams& params(bool in_double) const { return in_double ? wide_ : typed_; }
  tsallis::ConstArray4 d_out(bool in_double) const {
    return d_out_.View(in_double ? DType::kFloat64 : dtype_, in_double);
  }
  bool wants_backward() const { return backward_; }
  std::size_t saved_bytes() const { return saved_bytes_; }
  std::int64_t batch() const { return batch_; }  // of the arrays

 private:
  void Draw();
  void DrawMask();
  void DrawRanges();
  void DrawTerms();
  void Spoil();
  bool Chance(int percent) { return bytes_.ConsumeIntegralInRange<int>(0, 99) < percent; }
  std::int64_t Pick(std::int64_t low, std::int64_t high) {
    return bytes_.ConsumeIntegralInRange<std::int64_t>(low, high);
  }
  double Value();
  Array Fill(DType dtype, std::int64_t b, std::int64_t h, std::int64_t r, std::int64_t c);
  template <typename Set>
  void Both(const Set& set) {
    set(typed_);
    set(wide_);
  }

  FuzzedDataProvider& bytes_;
  DType dtype_ = DType::kFloat32;
  bool tame_ = true, backward_ = false;
  std::size_t saved_bytes_ = 0;
  std::int64_t batch_ = 0;
  AttentionParams typed_, wide_;
  Array q_, k_, v_, d_out_, length_scale_, slopes_, bias_;
  std::vector<double> alphas_, sinks_;
  std::vector<std::uint8_t> visible_, blocks_;
  std::vector<std::int64_t> q_begin_, q_end_, k_begin_, k_end_;
};

// Mostly moderate numbers, a few specials; any bits at all if not tame.
double Input::Value() {
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

Array Input::Fill(DType dtype, std::int64_t b, std::int64_t h, std::int64_t r, std::int64_t c) {
  Array array;
  const std::int64_t row = c + Pick(0, 2);
  const int order = static_cast<int>(Pick(0, 3));
  const std::int64_t plain[4] = {h * r * row, r * row, row, 1};
  const std::int64_t exchanged[4] = {h * r * row, row, h * row, 1};
  const std::int64_t columns[4] = {h * r * row, r * row, 1, r};
  std::copy_n(order == 1 ? exchanged : order == 2 ? columns : plain, 4, array.strides);
  if (order == 3 && b * h * r * row > 0) {  // backwards
    array.start = (r - 1) * row;
    array.strides[2] = -row;
  }
  const auto count = static_cast<std::size_t>(std::max<std::int64_t>(b * h * r * row, 0));
  array.memory.resize(count * tsallis::SizeOf(dtype));
  array.wide.resize(count);
  // A short input makes long arrays: its values repeat with a period that is no power of two.
  std::vector<double> pool(static_cast<std::size_t>(Pick(1, 61)));
  for (double& value : pool) value = Value();
  for (std::size_t i = 0; i < count; ++i) {
    const auto at = static_cast<std::int64_t>(i);
    const double shift = (i * 2654435761u >> 7) % 17 / 16.0;
    tsallis::StoreElement(array.memory.data(), dtype, at, pool[i % pool.size()] * (0.5 + shift));
    array.wide[i] = tsallis::LoadElement<double>(array.memory.data(), dtype, at);
  }
  return array;
}

void Input::Draw() {
  dtype_ = static_cast<DType>(Pick(0, 3));
  tame_ = Chance(70);
  backward_ = Chance(60);
  saved_bytes_ = static_cast<std::size_t>(Chance(50) ? 0 : Pick(1, 20000));
  typed_.batch = Chance(5) ? 0 : Pick(1, 3);
  typed_.kv_heads = Pick(1, 2);
  typed_.heads = typed_.kv_heads * Pick(1, 3);
  typed_.q_len = Pick(0, kMost);
  typed_.k_len = Pick(0, kMost);
  typed_.head_dim = Chance(70) ? Pick(1, 20) : Pick(1, 140);
  typed_.value_dim = Chance(70) ? typed_.head_dim : Pick(1, 140);
  const std::vector<tsallis::RowMap>& maps = tsallis::AttentionMaps();
  typed_.map =
      Chance(50)
          ? tsallis::RowMap::kEntmax
          : maps[static_cast<std::size_t>(Pick(0, static_cast<std::int64_t>(maps.size()) - 1))];
  typed_.top_k = {.k = Pick(1, 9), .fraction = Chance(50) ? 0.0 : 0.5};
  if (Chance(30)) typed_.sigmoid_bias = static_cast<double>(Pick(-30, 30)) / 10.0;
  const double alphas[] = {1.5, 2.0, 1.25, 1.0, 1.01, 1.9, 2.5, 64.0, 0.5, 0.99};
  typed_.alpha = alphas[Pick(0, 9)];
  wide_ = typed_;
  if (Chance(15)) {
    for (std::int64_t h = 0; h < typed_.heads; ++h) {
      alphas_.push_back(static_cast<double>(Pick(1, 255)) / 85.0);
    }
    Both([&](AttentionParams& p) { p.alpha_per_head = alphas_.data(); });
  }
  DrawRanges();
  batch_ = typed_.ranges.packed ? std::min<std::int64_t>(typed_.batch, 1) : typed_.batch;
  const AttentionParams& p = typed_;
  q_ = Fill(dtype_, batch_, p.heads, p.q_len, p.head_dim);
  k_ = Fill(dtype_, batch_, p.kv_heads, p.k_len, p.head_dim);
  v_ = Fill(dtype_, batch_, p.kv_heads, p.k_len, p.value_dim);
  d_out_ = Fill(dtype_, batch_, p.heads, p.q_len, p.value_dim);
  for (const bool in_double : {false, true}) {
    AttentionParams& params = in_double ? wide_ : typed_;
    params.q = q_.View(dtype_, in_double);
    params.k = k_.View(dtype_, in_double);
    params.v = v_.View(dtype_, in_double);
  }
  DrawMask();
  DrawTerms();
  if (Chance(8)) Spoil();
}

void Input::DrawMask() {
  tsallis::AttentionMask mask;
  // Stick-breaking without it must be refused.
  mask.causal = Chance(typed_.map == tsallis::RowMap::kStickBreaking ? 95 : 50);
  mask.alignment = Chance(20) ? tsallis::Alignment::kStart : tsallis::Alignment::kEnd;
  if (Chance(20)) mask.left = Chance(5) ? INT64_MAX : Pick(0, kMost);
  if (Chance(15)) mask.right = Chance(5) ? INT64_MAX : Pick(0, kMost);
  const std::int64_t n = typed_.q_len * typed_.k_len;
  if (Chance(15)) {
    visible_.resize(static_cast<std::size_t>(n) + 1);
    const auto period = Pick(1, 13);
    for (std::int64_t i = 0; i < n; ++i) visible_[i] = i % period == 0 ? 0 : 1;
    mask.visible = visible_.data();
    const std::int64_t strides[4] = {0, 0, typed_.k_len, 1};
    std::copy_n(strides, 4, mask.visible_strides);
  }
  if (Chance(15)) {
    mask.block_q = Pick(1, 20);
    mask.block_k = Pick(1, 20);
    const std::int64_t rows = (typed_.q_len + mask.block_q - 1) / mask.block_q;
    const std::int64_t columns = (typed_.k_len + mask.block_k - 1) / mask.block_k;
    blocks_.resize(static_cast<std::size_t>(rows * columns) + 1);
    for (auto& block : blocks_) block = static_cast<std::uint8_t>(Pick(0, 1));
    mask.blocks = blocks_.data();
    const std::int64_t strides[4] = {0, 0, columns, 1};
    std::copy_n(strides, 4, mask.block_strides);
  }
  Both([&](AttentionParams& p) { p.mask = mask; });
}

// Any ranges, sorted or not: those that are wrong must be refused.
void Input::DrawRanges() {
  if (!Chance(30)) return;
  const bool packed = Chance(40), sorted = Chance(90);
  std::int64_t q_at = 0, k_at = 0;
  for (std::int64_t b = 0; b < typed_.batch; ++b) {
    const auto span = [&](std::int64_t& at, std::int64_t length, auto& begin, auto& end) {
      const std::int64_t low = packed && sorted ? at : 0;
      std::int64_t first = sorted ? Pick(low, length) : Pick(-1, length + 1);
      std::int64_t last = sorted ? Pick(first, length) : Pick(-1, length + 1);
      begin.push_back(first);
      end.push_back(last);
      at = last;
    };
    span(q_at, typed_.q_len, q_begin_, q_end_);
    span(k_at, typed_.k_len, k_begin_, k_end_);
  }
  const bool q = packed || Chance(80), k = packed || Chance(80);
  Both([&](AttentionParams& p) {
    p.ranges.packed = packed;
    if (q) p.ranges.q_begin = q_begin_.data();
    if (q) p.ranges.q_end = q_end_.data();
    if (k) p.ranges.k_begin = k_begin_.data();
    if (k) p.ranges.k_end = k_end_.data();
  });
}

void Input::DrawTerms() {
  const double scale = Chance(20) ? static_cast<double>(Pick(1, 300)) / 100.0 : 0.0;
  const double length = Chance(15) ? static_cast<double>(Pick(1, 100)) : 0.0;
  // The alpha of the general law and a beta that it allows.
  const bool has_law = length > 0.0 && Chance(40);
  const double law_alpha = has_law ? static_cast<double>(Pick(5, 400)) / 100.0 : 0.0;
  const double law_beta = has_law ? std::max(1e-3, law_alpha * std::log(law_alpha)) +
                                        static_cast<double>(Pick(1, 300)) / 100.0
                                  : 0.0;
  const double softcap = Chance(15) ? static_cast<double>(Pick(1, 60)) : 0.0;
  const bool has_c = Chance(20), has_slopes = Chance(20), has_bias = Chance(15);
  const auto dtype = static_cast<DType>(Pick(0, 3));
  if (has_c) length_scale_ = Fill(dtype, batch_, typed_.heads, typed_.q_len, 1);
  if (has_slopes) slopes_ = Fill(dtype, batch_, typed_.heads, 1, 1);
  if (has_bias) bias_ = Fill(dtype, batch_, typed_.heads, typed_.q_len, typed_.k_len);
  for (const bool in_double : {false, true}) {
    tsallis::AttentionTerms& terms = (in_double ? wide_ : typed_).terms;
    terms.scale = scale;
    terms.scale_invariant = length;
    terms.scale_invariant_alpha = law_alpha;
    terms.scale_invariant_beta = law_beta;
    terms.softcap = softcap;
    if (has_c) terms.length_scale = length_scale_.View(dtype, in_double);
    if (has_slopes) terms.alibi_slopes = slopes_.View(dtype, in_double);
    if (has_bias) terms.bias = bias_.View(dtype, in_double);
  }
  if (!Chance(tsallis::TakesSink(typed_.map) ? 15 : 2)) return;
  for (std::int64_t h = 0; h < typed_.heads; ++h) sinks_.push_back(Value());
  Both([&](AttentionParams& p) { p.terms.sink = sinks_.data(); });
}

// One argument that is out of its range, in a way that cannot lead outside of the arrays if
// accepted.
void Input::Spoil() {
  const auto mistake = Pick(0, 18);
  Both([&](AttentionParams& p) {
    switch (mistake) {
      case 0: p.batch = -1; break;
      case 1: p.heads = -p.heads; break;
      case 2: p.kv_heads = 0; break;
      case 3: p.kv_heads = p.heads + 1; break;
      case 4: p.q_len = std::numeric_limits<std::int64_t>::min(); break;
      case 5: p.k_len = std::numeric_limits<std::int64_t>::max(); break;
      case 6: p.head_dim = 0; break;
      case 7: p.value_dim = 513; break;
      case 8: p.map = static_cast<tsallis::RowMap>(200); break;
      case 9: p.alpha = NAN; break;
      case 10: p.terms.scale = -INFINITY; break;
      case 11: p.terms.scale_invariant = NAN; break;
      case 12: p.adaptive.coefficients.clear(); break;
      case 13: p.top_k.k = -p.top_k.k; break;
      case 14: p.top_k.fraction = NAN; break;
      case 15: p.terms.softcap = -1.0; break;
      case 16: p.terms.scale_invariant_alpha = -1.0; break;
      case 17: p.terms.scale_invariant_beta = NAN; break;
      default: p.q.dtype = static_cast<DType>(77); break;
    }
  });
}

struct Outcome {
  Outcome(const Input& input, bool in_double)
      : params(input.params(in_double)),
        dtype(in_double ? DType::kFloat64 : input.dtype()),
        batch(input.batch()),
        heads(std::max<std::int64_t>(params.heads, 0)),
        q_len(params.q_len < 0 ? 0 : params.q_len),
        k_len(params.k_len > kMost ? 0 : params.k_len),
        out(dtype, batch, heads, q_len, params.value_dim),
        dq(dtype, batch, heads, q_len, params.head_dim),
        dk(dtype, batch, std::max<std::int64_t>(params.kv_heads, 0), k_len, params.head_dim),
        dv(dtype, batch, std::max<std::int64_t>(params.kv_heads, 0), k_len, params.value_dim),
        tau(static_cast<std::size_t>(batch * heads * q_len), kMark),
        entropy(tau),
        maximum(tau),
        support(tau.size(), 7) {}

  // False: refused.
  bool Run(const Input& input, bool in_double, int threads, std::size_t saved_bytes) {
    saved.assign(saved_bytes + 64, std::byte{0x5A});
    const auto address = reinterpret_cast<std::uintptr_t>(saved.data());
    void* aligned = saved.data() + (64 - address % 64) % 64;
    AttentionOutputs outputs;
    outputs.out = out.View();
    outputs.tau = tau.data();
    outputs.entropy = entropy.data();
    outputs.maximum = maximum.data();
    outputs.support_size = support.data();
    outputs.saved = saved_bytes > 0 ? aligned : nullptr;
    outputs.saved_bytes = saved_bytes;
    AttentionGradients gradients;
    gradients.d_out = input.d_out(in_double);
    gradients.tau = tau.data();
    gradients.saved = outputs.saved;
    gradients.saved_bytes = saved_bytes;
    gradients.dq = dq.View();
    gradients.dk = dk.View();
    gradients.dv = dv.View();
    try {
      tsallis::AttentionForward({threads}, params, outputs);
      if (input.wants_backward()) tsallis::AttentionBackward({threads}, params, gradients);
    } catch (const tsallis::InvalidArgument& error) {
      Require(!error.argument().empty(), "an error without the argument's name");
      if (std::getenv("TSALLIS_FUZZ_SHOW") != nullptr) std::fprintf(stderr, "%s\n", error.what());
      Require(out.Untouched() && dq.Untouched() && dk.Untouched() && dv.Untouched(),
              "refused, but wrote");
      return false;
    }
    for (const Result* result : {&out, &dq, &dk, &dv}) result->CheckGuards();
    return true;
  }

  const AttentionParams& params;
  DType dtype;
  std::int64_t batch, heads, q_len, k_len;
  Result out, dq, dk, dv;
  std::vector<double> tau, entropy, maximum;
  std::vector<std::int64_t> support;
  std::vector<std::byte> saved;
};

void RequireSameBits(const Outcome& a, const Outcome& b) {
  const std::pair<const Result*, const Result*> pairs[] = {
      {&a.out, &b.out}, {&a.dq, &b.dq}, {&a.dk, &b.dk}, {&a.dv, &b.dv}};
  for (const auto& [x, y] : pairs) {
    for (std::int64_t i = 0; i < x->count; ++i) {
      const double u = x->At(i), w = y->At(i);
      Require(std::memcmp(&u, &w, sizeof(u)) == 0 || (std::isnan(u) && std::isnan(w)),
              "other bits with other threads or saved memory");
    }
  }
}

// `exact`: the same in float64.
void RequireAsSpecified(const Input& input, const Outcome& ours, const Outcome& exact) {
  double largest = 0.0;
  const AttentionParams& p = exact.params;
  const std::int64_t values = exact.batch * p.kv_heads * p.k_len * p.value_dim;
  const auto* v = static_cast<const double*>(p.v.data);
  for (std::int64_t i = 0; i < values; ++i) {
    const std::int64_t x = i % p.value_dim, row = i / p.value_dim;
    const std::int64_t j = row % p.k_len, h = row / p.k_len % p.kv_heads,
                       b = row / p.k_len / p.kv_heads;
    const double value = std::abs(
        v[b * p.v.strides[0] + h * p.v.strides[1] + j * p.v.strides[2] + x * p.v.strides[3]]);
    if (!std::isnan(value)) largest = std::max(largest, value);
  }
  const auto* c = static_cast<const double*>(p.terms.length_scale.data);
  const auto has_infinite_c = [&](std::int64_t row) {
    if (c == nullptr) return false;
    const auto& strides = p.terms.length_scale.strides;
    return std::isinf(c[row / p.q_len / p.heads * strides[0] +
                        row / p.q_len % p.heads * strides[1] + row % p.q_len * strides[2]]);
  };
  for (std::int64_t i = 0; i < ours.out.count; ++i) {
    const double got = ours.out.At(i), expected = exact.out.At(i);
    const std::int64_t row = i / p.value_dim;
    if (has_infinite_c(row)) continue;  // open
    // Products may overflow in float32 and not in double.
    if (exact.maximum[row] == -INFINITY && (input.tame() || ours.maximum[row] == -INFINITY)) {
      Require(got == 0.0 && ours.support[row] == 0, "a row that sees nothing is not 0");
    }
    if (!input.tame()) continue;
    // A value of NaN does not count where float32 is too short for its weight.
    if (std::isnan(expected) && ours.support[row] != exact.support[row]) continue;
    if (!std::isfinite(expected)) {
      Require(std::isnan(expected) == std::isnan(got), "NaN is not where it is to be");
    } else if (p.map != tsallis::RowMap::kSigmoid) {
      Require(std::abs(got) <= largest * 1.01 + 1e-30 || got == kMark, "beyond the values' range");
    }
  }
  if (!input.tame() || !input.wants_backward()) return;
  if (p.map == tsallis::RowMap::kEntmax && (p.alpha > 2.0 || p.alpha_per_head != nullptr)) return;
  for (std::int64_t row = 0; row < exact.batch * p.heads * p.q_len; ++row) {
    if (has_infinite_c(row)) return;
  }
  // A row of NaN may or may not spread NaN to its keys with scores of -inf: that is not specified.
  if (std::find(exact.support.begin(), exact.support.end(), -1) != exact.support.end()) return;
  const std::pair<const Result*, const Result*> pairs[] = {
      {&ours.dq, &exact.dq}, {&ours.dk, &exact.dk}, {&ours.dv, &exact.dv}};
  for (const auto& [x, y] : pairs) {
    for (std::int64_t i = 0; i < x->count; ++i) {
      if (!std::isfinite(y->At(i)) || std::abs(y->At(i)) > 6e4) continue;
      Require(std::isfinite(x->At(i)), "a gradient is not finite where the definition's is");
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  FuzzedDataProvider bytes(data, size);
  const Input input(bytes);
  Outcome one(input, false);
  if (!one.Run(input, false, 1, 0)) return 0;
  Outcome other(input, false);
  Require(other.Run(input, false, 2, input.saved_bytes()), "refused the second time");
  RequireSameBits(one, other);
  if (!input.in_double_possible()) return 0;
  Outcome exact(input, true);
  Require(exact.Run(input, true, 1, 0), "refused in float64");
  RequireAsSpecified(input, one, exact);
  return 0;
}
