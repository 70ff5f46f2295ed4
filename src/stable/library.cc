// The operators: their schemas, and the functions that read a call off torch's stack. They compute
// and record nothing: autograd, shapes for tracing, autocast and vmap are Python's
// (python/tsallis/_autograd.py, _fakes.py).
//
// Numbers stand one by one in the schemas and names of maps are integers: lists and strings cost
// microseconds a call, and torch 2.13 leaks strings.
#include <torch/csrc/stable/library.h>

#include <algorithm>
#include <string>
#include <vector>

#include "stable/attention.h"
#include "stable/cache.h"
#include "stable/rows.h"
#include "tsallis/patterns.h"

namespace tsallis::stable {

template <>
struct Argument<RowArguments> {
  explicit Argument(Stack& stack) { ReadSettings(kRowSettings, stack, value); }
  RowArguments value;
};
template <>
struct Argument<LossArguments> {
  explicit Argument(Stack& stack) { ReadSettings(kLossSettings, stack, value); }
  LossArguments value;
};
template <>
struct Argument<AttentionArguments> {
  explicit Argument(Stack& stack) { ReadSettings(kAttentionSettings, stack, value); }
  AttentionArguments value;
};
template <>
struct Argument<DecodeMode> {
  explicit Argument(Stack& stack) {
    value.keys = static_cast<DecodeKeys>(stack.Take<std::int64_t>());
    value.epsilon = stack.Take<double>();
    value.budget = stack.Take<std::int64_t>();
    value.first = stack.Take<std::int64_t>();
    value.quantile = stack.Take<double>();
  }
  DecodeMode value;
};

namespace {

using Int = std::int64_t;
using Ints = std::vector<std::int64_t>;
using OptionalTensor = std::optional<Tensor>;
template <std::size_t kCount>
using Tensors = std::array<Tensor, kCount>;

// ---- row maps

RowResults Rows(const Tensor& scores, const OptionalTensor& alpha, RowArguments& arguments,
                bool want_stats) {
  return WithRowPassesOf(scores, [&](const RowPasses& passes) {
    return MapRows(passes, scores, alpha, arguments, want_stats);
  });
}

Tensor MapPlain(const Tensor& scores, const OptionalTensor& alpha, RowArguments& arguments) {
  return Rows(scores, alpha, arguments, false).probabilities;
}

Tensors<4> RowMapStats(const Tensor& scores, const OptionalTensor& alpha, RowArguments& arguments) {
  RowResults r = Rows(scores, alpha, arguments, true);
  return {std::move(r.probabilities), std::move(r.tau), std::move(r.support_size),
          std::move(r.entropy)};
}

RowGradients RowsBackward(const Tensor& d_p, const Tensor& scores, const Tensor& p,
                          const OptionalTensor& alpha, RowArguments& arguments, bool want_alpha) {
  return WithRowPassesOf(scores, [&](const RowPasses& passes) {
    return MapRowsBackward(passes, d_p, scores, p, alpha, arguments, want_alpha);
  });
}

Tensor RowMapBackward(const Tensor& d_p, const Tensor& scores, const Tensor& p,
                      const OptionalTensor& alpha, RowArguments& arguments) {
  return RowsBackward(d_p, scores, p, alpha, arguments, false).d_scores;
}

Tensors<2> RowMapBackwardAlpha(const Tensor& d_p, const Tensor& scores, const Tensor& p,
                               const OptionalTensor& alpha, RowArguments& arguments) {
  RowGradients g = RowsBackward(d_p, scores, p, alpha, arguments, true);
  return {std::move(g.d_scores), std::move(g.d_alpha)};
}

LossResults Losses(const Tensor& scores, const Tensor& targets, LossArguments& arguments,
                   bool want_gradient) {
  return WithRowPassesOf(scores, [&](const RowPasses& passes) {
    return FenchelYoungLosses(passes, scores, targets, arguments, want_gradient);
  });
}

Tensor Loss(const Tensor& scores, const Tensor& targets, LossArguments& arguments) {
  return Losses(scores, targets, arguments, false).losses;
}

Tensors<2> LossForward(const Tensor& scores, const Tensor& targets, LossArguments& arguments) {
  LossResults r = Losses(scores, targets, arguments, true);
  return {std::move(r.losses), std::move(r.gradient)};
}

// ---- attention

AttentionResults Forward(const Tensor& q, const Tensor& k, const Tensor& v,
                         AttentionArguments& arguments, const AttentionRequest& request) {
  return WithPassesOf(q, [&](const AttentionPasses& passes) {
    return AttentionForward(passes, q, k, v, arguments, request);
  });
}

Tensors<5> Statistics(AttentionResults r) {
  return {std::move(r.out), std::move(r.tau), std::move(r.support_size), std::move(r.entropy),
          std::move(r.maximum)};
}

Tensor Plain(const Tensor& q, const Tensor& k, const Tensor& v, AttentionArguments& arguments) {
  return Forward(q, k, v, arguments, {}).out;
}

Tensors<5> Stats(const Tensor& q, const Tensor& k, const Tensor& v, AttentionArguments& arguments) {
  return Statistics(Forward(q, k, v, arguments, {.stats = true}));
}

Tensors<3> ForGradients(const Tensor& q, const Tensor& k, const Tensor& v, Int saves,
                        AttentionArguments& arguments) {
  AttentionResults r =
      Forward(q, k, v, arguments, {.tau = true, .saves = static_cast<Saves>(saves)});
  return {std::move(r.out), std::move(r.tau), std::move(r.saved)};
}

Tensors<6> ForGradientsStats(const Tensor& q, const Tensor& k, const Tensor& v, Int saves,
                             AttentionArguments& arguments) {
  AttentionResults r =
      Forward(q, k, v, arguments, {.tau = true, .stats = true, .saves = static_cast<Saves>(saves)});
  return {std::move(r.out),          std::move(r.tau),     std::move(r.saved),
          std::move(r.support_size), std::move(r.entropy), std::move(r.maximum)};
}

Tensors<kInputs> BackwardTerms(const Tensor& d_out, const Tensor& q, const Tensor& k,
                               const Tensor& v, const Tensor& tau, const Tensor& saved, Int bits,
                               AttentionArguments& arguments) {
  AttentionWanted wanted{};
  for (int i = 0; i < kInputs; ++i) wanted[i] = (bits >> i & 1) != 0;
  return WithPassesOf(q, [&](const AttentionPasses& passes) {
    return AttentionBackward(passes, d_out, q, k, v, tau, saved, arguments, wanted);
  });
}

Tensors<3> Backward(const Tensor& d_out, const Tensor& q, const Tensor& k, const Tensor& v,
                    const Tensor& tau, const Tensor& saved, Int bits,
                    AttentionArguments& arguments) {
  auto all = BackwardTerms(d_out, q, k, v, tau, saved, bits & 7, arguments);
  return {std::move(all[kQ]), std::move(all[kK]), std::move(all[kV])};
}

Tensors<3> Weights(const Tensor& q, const Tensor& k, AttentionArguments& arguments) {
  AttentionWeightTensors w = WithPassesOf(
      q, [&](const AttentionPasses& passes) { return AttentionWeights(passes, q, k, arguments); });
  return {std::move(w.row_offsets), std::move(w.columns), std::move(w.values)};
}

AttentionResults OnPagesInto(const Tensor& out, const Tensor& q, const Tensor& k_pages,
                             const Tensor& v_pages, const Tensor& block_table,
                             const OptionalTensor& screen, AttentionArguments& arguments,
                             bool stats) {
  const Tensor none;
  const PagesCall call = {q, k_pages, v_pages, block_table, screen ? *screen : none, out};
  return WithPassesOf(q, [&](const AttentionPasses& passes) {
    return AttentionOnPages(passes, call, arguments, stats);
  });
}

Tensor OnPages(const Tensor& q, const Tensor& k_pages, const Tensor& v_pages,
               const Tensor& block_table, const OptionalTensor& screen,
               AttentionArguments& arguments) {
  return OnPagesInto(Tensor(), q, k_pages, v_pages, block_table, screen, arguments, false).out;
}

Tensors<5> OnPagesStats(const Tensor& q, const Tensor& k_pages, const Tensor& v_pages,
                        const Tensor& block_table, const OptionalTensor& screen,
                        AttentionArguments& arguments) {
  return Statistics(
      OnPagesInto(Tensor(), q, k_pages, v_pages, block_table, screen, arguments, true));
}

void OnPagesOut(const Tensor& out, const Tensor& q, const Tensor& k_pages, const Tensor& v_pages,
                const Tensor& block_table, const OptionalTensor& screen,
                AttentionArguments& arguments) {
  OnPagesInto(out, q, k_pages, v_pages, block_table, screen, arguments, false);
}

Int BytesToScreenBy(Int head_dim) {
  return Renamed([&] { return static_cast<Int>(ScreenBytes(head_dim)); });
}

// ---- the cache

Int New(Int layers, Int kv_heads, Int head_dim, Int value_dim, Int dtype, bool screen, bool ranges,
        bool moments, Int max_bytes) {
  return NewCache({layers, kv_heads, head_dim, value_dim, static_cast<DType>(dtype)},
                  {.screen = screen ? KeyScreen::kBytes : KeyScreen::kNone,
                   .ranges = ranges,
                   .moments = moments,
                   .max_bytes = max_bytes});
}

Int Create(const Tensor& cache) { return CacheOf(cache)->Create(); }
Int Fork(const Tensor& cache, Int from, Int length) { return CacheOf(cache)->Fork(from, length); }
void Truncate(const Tensor& cache, Int sequence, Int length) {
  CacheOf(cache)->Truncate(sequence, length);
}
Int Length(const Tensor& cache, Int sequence, Int layer) {
  return CacheOf(cache)->Length(sequence, layer);
}
void Append(const Tensor& cache, Int layer, const Ints& sequences, const Tensor& k,
            const Tensor& v) {
  CacheOf(cache)->Append(layer, sequences, k, v);
}
Tensors<2> Read(const Tensor& cache, Int sequence, Int layer) {
  return CacheOf(cache)->Read(sequence, layer);
}

// A path as a tensor of its bytes, since strings leak.
std::string PathOf(const Tensor& bytes) {
  const Tensor row = Contiguous(bytes);
  return {row.data_as<char>(), static_cast<std::size_t>(row.numel())};
}
void Save(const Tensor& cache, Int sequence, const Tensor& path) {
  CacheOf(cache)->Save(sequence, PathOf(path));
}
Int Load(const Tensor& cache, const Tensor& path) { return CacheOf(cache)->Load(PathOf(path)); }

std::array<Int, 5> Use(const Tensor& cache) {
  const KvCacheUse use = CacheOf(cache)->Use();
  return {use.sequences, use.pages, use.shared_pages, use.page_bytes, use.bytes};
}

// value_dim is for tracing, which must know it without the cache.
Tensors<9> DecodeStats(const Tensor& cache, const Tensor& q, Int, Int layer, const Ints& sequences,
                       const std::optional<Ints>& begin, Int wanted, const DecodeMode& mode,
                       AttentionArguments& arguments) {
  return CacheOf(cache)->Decode(q, {layer, sequences, begin, mode, wanted}, arguments);
}
Tensor DecodePlain(const Tensor& cache, const Tensor& q, Int value_dim, Int layer,
                   const Ints& sequences, const std::optional<Ints>& begin, const DecodeMode& mode,
                   AttentionArguments& arguments) {
  return std::move(
      DecodeStats(cache, q, value_dim, layer, sequences, begin, 0, mode, arguments)[0]);
}

// ---- masks of fixed patterns (patterns.h)

Tensor Booleans(const std::vector<std::uint8_t>& values, Int rows, Int columns) {
  const Int sizes[] = {rows, columns};
  Tensor tensor = Empty(sizes, dtypes::kBool, Device::Cpu());
  std::ranges::transform(values, tensor.mutable_as<bool>(),
                         [](std::uint8_t value) { return value != 0; });
  return tensor;
}

// The second mask has no element where the blocks say all.
Tensors<2> PatternMasks(Int q_len, Int k_len, Int block_q, Int block_k, Int alignment, bool causal,
                        Int window, Int global_tokens, Int stride, Int segment, Int summary,
                        Int random, Int random_block, Int seed) {
  if (seed < 0) throw InvalidArgument("seed", "an integer >= 0", std::to_string(seed));
  const AttentionPattern pattern = {.causal = causal,
                                    .window = window,
                                    .global_tokens = global_tokens,
                                    .stride = stride,
                                    .segment = segment,
                                    .summary = summary,
                                    .random = random,
                                    .random_block = random_block,
                                    .seed = static_cast<std::uint64_t>(seed)};
  const PatternMask mask = Renamed([&] {
    return MaskOf(pattern, q_len, k_len, block_q, block_k, static_cast<Alignment>(alignment));
  });
  return {Booleans(mask.blocks, Blocks(q_len, block_q), Blocks(k_len, block_k)),
          mask.cut ? Booleans(mask.elements, q_len, k_len) : Booleans({}, 0, 0)};
}

// ---- the lists

const std::string kRows = ", *, " + Schema(kRowSettings, RowArguments{}) + ") -> ";
const std::string kLosses = ", *, " + Schema(kLossSettings, LossArguments{}) + ") -> ";
const std::string kAttention = ", *, " + Schema(kAttentionSettings, AttentionArguments{}) + ") -> ";
const std::string kStatistics = "Tensor support_size, Tensor entropy, Tensor maximum)";
const std::string kOnPages =
    "Tensor q, Tensor k_pages, Tensor v_pages, Tensor block_table, Tensor? screen=None" +
    kAttention;
const std::string kMode =
    ", int keys=0, float epsilon=0.001, int budget=1024, int first=4, float quantile=0.5";

struct Definition {
  std::string schema;
  Operator call;
  // Of CPU tensors; else also of CUDA tensors, or no tensor decides.
  enum Where : std::uint8_t { kCpu, kCpuAndCuda, kAnywhere } where = kCpu;
};

std::vector<Definition> Definitions() {
  using enum Definition::Where;
  return {
      {"row_map(Tensor scores, Tensor? alpha_rows=None" + kRows + "Tensor", Boxed<MapPlain>,
       kCpuAndCuda},
      // float64 where not integers, here and below
      {"row_map_stats(Tensor scores, Tensor? alpha_rows=None" + kRows +
           "(Tensor probabilities, Tensor tau, Tensor support_size, Tensor entropy)",
       Boxed<RowMapStats>, kCpuAndCuda},
      {"row_map_backward(Tensor d_probabilities, Tensor scores, Tensor probabilities, "
       "Tensor? alpha_rows=None" +
           kRows + "Tensor",
       Boxed<RowMapBackward>, kCpuAndCuda},
      {"row_map_backward_alpha(Tensor d_probabilities, Tensor scores, Tensor probabilities, "
       "Tensor? alpha_rows" +
           kRows + "(Tensor d_scores, Tensor d_alpha)",
       Boxed<RowMapBackwardAlpha>, kCpuAndCuda},
      {"fenchel_young_loss(Tensor scores, Tensor targets" + kLosses + "Tensor", Boxed<Loss>,
       kCpuAndCuda},
      {"fenchel_young_loss_forward(Tensor scores, Tensor targets" + kLosses +
           "(Tensor losses, Tensor gradient)",
       Boxed<LossForward>, kCpuAndCuda},
      {"fit_adaptive_temperature(Tensor scores, Tensor targets, int degree=4, "
       "float theta_max=10.0, float theta_step=0.1) -> (Tensor coefficients, int samples, "
       "float rms_error)",
       Boxed<FitTemperature>},
      {"attention(Tensor q, Tensor k, Tensor v" + kAttention + "Tensor", Boxed<Plain>, kCpuAndCuda},
      {"attention_stats(Tensor q, Tensor k, Tensor v" + kAttention + "(Tensor out, Tensor tau, " +
           kStatistics,
       Boxed<Stats>, kCpuAndCuda},
      // For autograd. The contents of `saved` are the library's; saves: as Saves.
      {"attention_forward(Tensor q, Tensor k, Tensor v, int saves=1" + kAttention +
           "(Tensor out, Tensor tau, Tensor saved)",
       Boxed<ForGradients>, kCpuAndCuda},
      {"attention_forward_stats(Tensor q, Tensor k, Tensor v, int saves=1" + kAttention +
           "(Tensor out, Tensor tau, Tensor saved, " + kStatistics,
       Boxed<ForGradientsStats>, kCpuAndCuda},
      // wanted: bit i says whether result i is; the others have no elements.
      {"attention_backward(Tensor d_out, Tensor q, Tensor k, Tensor v, Tensor tau, Tensor saved, "
       "int wanted=7" +
           kAttention + "(Tensor dq, Tensor dk, Tensor dv)",
       Boxed<Backward>, kCpuAndCuda},
      {"attention_backward_terms(Tensor d_out, Tensor q, Tensor k, Tensor v, Tensor tau, "
       "Tensor saved, int wanted" +
           kAttention +
           "(Tensor dq, Tensor dk, Tensor dv, Tensor d_alpha_heads, Tensor d_length_scale, "
           "Tensor d_alibi_slopes, Tensor d_bias, Tensor d_sink)",
       Boxed<BackwardTerms>, kCpuAndCuda},
      {"attention_weights(Tensor q, Tensor k" + kAttention +
           "(Tensor row_offsets, Tensor columns, Tensor values)",
       Boxed<Weights>, kCpuAndCuda},
      {"attention_on_pages(" + kOnPages + "Tensor", Boxed<OnPages>, kCpuAndCuda},
      {"attention_on_pages_stats(" + kOnPages + "(Tensor out, Tensor tau, " + kStatistics,
       Boxed<OnPagesStats>, kCpuAndCuda},
      {"attention_on_pages_out(Tensor(a!) out, " + kOnPages + "()", Boxed<OnPagesOut>, kCpuAndCuda},
      {"put_on_pages(Tensor k, Tensor v, Tensor(a!) k_pages, Tensor(b!) v_pages, Tensor slots, "
       "Tensor(c!)? screen=None) -> ()",
       Boxed<PutOnPages>},
      {"screen_bytes(int head_dim) -> int", Boxed<BytesToScreenBy>, kAnywhere},
      {"decode(Tensor cache, Tensor q, int value_dim, int layer, int[] sequences, int[]? "
       "begin=None" +
           kMode + kAttention + "Tensor",
       Boxed<DecodePlain>},
      // wanted: bit i says whether statistic i is; the others have no elements.
      {"decode_stats(Tensor cache, Tensor q, int value_dim, int layer, int[] sequences, "
       "int[]? begin, int wanted" +
           kMode + kAttention + "(Tensor out, Tensor tau, " +
           kStatistics.substr(0, kStatistics.size() - 1) +
           ", Tensor certificate, Tensor lost, Tensor scored, Tensor bytes_read)",
       Boxed<DecodeStats>},
      {"cache_new(int layers, int kv_heads, int head_dim, int value_dim, int dtype, bool screen, "
       "bool ranges, bool moments, int max_bytes) -> int",
       Boxed<New>, kAnywhere},
      {"cache_create(Tensor(a!) cache) -> int", Boxed<Create>},
      {"cache_fork(Tensor(a!) cache, int sequence, int length) -> int", Boxed<Fork>},
      {"cache_truncate(Tensor(a!) cache, int sequence, int length) -> ()", Boxed<Truncate>},
      {"cache_length(Tensor cache, int sequence, int layer) -> int", Boxed<Length>},
      {"cache_append(Tensor(a!) cache, int layer, int[] sequences, Tensor k, Tensor v) -> ()",
       Boxed<Append>},
      {"cache_read(Tensor cache, int sequence, int layer) -> (Tensor k, Tensor v)", Boxed<Read>},
      {"cache_save(Tensor cache, int sequence, Tensor path) -> ()", Boxed<Save>},
      {"cache_load(Tensor(a!) cache, Tensor path) -> int", Boxed<Load>},
      {"cache_use(Tensor cache) -> (int sequences, int pages, int shared_pages, int page_bytes, "
       "int bytes)",
       Boxed<Use>},
      {"pattern_masks(int q_len, int k_len, int block_q, int block_k, int alignment, bool causal, "
       "int window, int global_tokens, int stride, int segment, int summary, int random, "
       "int random_block, int seed) -> (Tensor blocks, Tensor elements)",
       Boxed<PatternMasks>, kAnywhere},
  };
}

template <typename Library>
void Implement(Library& library, std::initializer_list<Definition::Where> places) {
  for (const Definition& definition : Definitions()) {
    if (std::ranges::find(places, definition.where) == places.end()) continue;
    library.impl(definition.schema.substr(0, definition.schema.find('(')).c_str(), definition.call);
  }
}

}  // namespace
}  // namespace tsallis::stable

STABLE_TORCH_LIBRARY(tsallis, library) {
  for (const auto& definition : tsallis::stable::Definitions()) {
    library.def(definition.schema.c_str());
  }
}
STABLE_TORCH_LIBRARY_IMPL(tsallis, CPU, library) {
  using enum tsallis::stable::Definition::Where;
  tsallis::stable::Implement(library, {kCpu, kCpuAndCuda});
}
STABLE_TORCH_LIBRARY_IMPL(tsallis, CUDA, library) {
  using enum tsallis::stable::Definition::Where;
  tsallis::stable::Implement(library, {kCpuAndCuda});
}
STABLE_TORCH_LIBRARY_IMPL(tsallis, CompositeExplicitAutograd, library) {
  using enum tsallis::stable::Definition::Where;
  tsallis::stable::Implement(library, {kAnywhere});
}
