// Attention on a cache: checks, and the call of the kernel.
#include <cmath>
#include <string>
#include <vector>

#include "attention/check.h"
#include "attention/cpu/decode/decode.h"
#include "attention/kernels.h"
#include "cache/reader.h"
#include "tsallis/error.h"
#include "tsallis/kv_cache.h"

namespace tsallis {
namespace {

using std::to_string;

void CheckAlpha(const std::string& name, double alpha) {
  if (alpha == 1.0 || (alpha >= decode::kLeastAlpha && alpha <= decode::kMostAlpha)) return;
  throw InvalidArgument(name, "1, or a number from 1.1 to 4", to_string(alpha));
}

void CheckMode(const KvCacheOptions& options, const DecodeMode& mode) {
  const auto number = [](const char* name, double value) {
    if (value > 0.0 && value < 1.0) return;
    throw InvalidArgument(name, "a number between 0 and 1", to_string(value));
  };
  switch (mode.keys) {
    case DecodeKeys::kExact: return;
    case DecodeKeys::kWithin: return number("mode.epsilon", mode.epsilon);
    case DecodeKeys::kTopPages:
      if (options.ranges) break;
      throw InvalidArgument("mode", "a cache that keeps ranges", "one without");
    case DecodeKeys::kGaussianPages:
      if (!options.moments) {
        throw InvalidArgument("mode", "a cache that keeps moments", "one without");
      }
      number("mode.quantile", mode.quantile);
      break;
    case DecodeKeys::kFirstAndLast:
      if (mode.first >= 0) break;
      throw InvalidArgument("mode.first", "0 or more", to_string(mode.first));
    default: throw InvalidArgument("mode.keys", "one of DecodeKeys", "another number");
  }
  if (mode.budget < 1) {
    throw InvalidArgument("mode.budget", "1 token or more", to_string(mode.budget));
  }
}

void CheckDecode(const KvCache& cache, const DecodeParams& params) {
  if (params.map != RowMap::kEntmax && params.map != RowMap::kSoftmax) {
    throw InvalidArgument("map", "entmax or softmax", Name(params.map));
  }
  if (params.map == RowMap::kEntmax) {
    if (params.alpha_per_head == nullptr) CheckAlpha("alpha", params.alpha);
    for (std::int64_t h = 0; params.alpha_per_head != nullptr && h < params.heads; ++h) {
      CheckAlpha("alpha_per_head[" + to_string(h) + "]", params.alpha_per_head[h]);
    }
  }
  if (params.terms.bias.data != nullptr) {
    throw InvalidArgument("terms.bias", "none when decoding", "a bias");
  }
  if (params.heads < 1 || params.heads % cache.shape().kv_heads != 0) {
    throw InvalidArgument(
        "heads", "a multiple of the cache's " + to_string(cache.shape().kv_heads) + " key heads",
        to_string(params.heads));
  }
  if (params.q.dtype != cache.shape().dtype) {
    throw InvalidArgument("q", std::string("the dtype of the cache, ") + Name(cache.shape().dtype),
                          Name(params.q.dtype));
  }
  CheckMode(cache.options(), params.mode);
  if (params.batch > 0 && params.sequences == nullptr) {
    throw InvalidArgument("sequences", to_string(params.batch) + " of them", "null");
  }
}

ConstArray4 From(ConstArray4 array, std::int64_t b) {
  if (array.data == nullptr) return array;
  array.data = static_cast<const std::byte*>(array.data) +
               b * array.strides[0] * static_cast<std::int64_t>(SizeOf(array.dtype));
  return array;
}

// Sequence b of a call, by the kernels that attend to many queries together.
void RunSequence(const Context& context, AttentionParams call, AttentionOutputs outputs,
                 std::int64_t b) {
  KeyValuePages pages = *call.pages;
  pages.keys.tables += b;
  pages.values.tables += b;
  call.pages = &pages;
  call.batch = 1;
  call.q = From(call.q, b);
  call.terms.length_scale = From(call.terms.length_scale, b);
  call.terms.alibi_slopes = From(call.terms.alibi_slopes, b);
  if (call.ranges.k_begin != nullptr) call.ranges.k_begin += b;
  call.ranges.k_end += b;
  call.k_len = *call.ranges.k_end;
  const auto rows = b * call.heads * call.q_len;
  outputs.out.data =
      static_cast<std::byte*>(outputs.out.data) +
      b * outputs.out.strides[0] * static_cast<std::int64_t>(SizeOf(outputs.out.dtype));
  if (outputs.tau != nullptr) outputs.tau += rows;
  if (outputs.support_size != nullptr) outputs.support_size += rows;
  if (outputs.entropy != nullptr) outputs.entropy += rows;
  if (outputs.maximum != nullptr) outputs.maximum += rows;
  RunForward(context, call, outputs);
}

}  // namespace

void Decode(const Context& context, const KvCache& cache, const DecodeParams& params,
            const DecodeOutputs& outputs) {
  CheckDecode(cache, params);
  const KvCacheShape& shape = cache.shape();
  AttentionParams call;
  call.batch = params.batch;
  call.heads = params.heads;
  call.kv_heads = shape.kv_heads;
  call.q_len = params.q_len;
  call.head_dim = shape.head_dim;
  call.value_dim = shape.value_dim;
  call.q = params.q;
  call.map = params.map;
  call.alpha = params.alpha;
  call.alpha_per_head = params.alpha_per_head;
  call.mask.causal = true;
  call.mask.left = params.left;
  call.terms = params.terms;
  std::vector<const std::byte* const*> tables;
  std::vector<const float*> norms;
  std::vector<std::int64_t> ends;
  for (std::int64_t b = 0; b < params.batch; ++b) {
    const CacheReader reader(cache, params.sequences[b], params.layer);
    if (reader.length() < params.q_len) {
      throw InvalidArgument("q_len",
                            "at most the " + to_string(reader.length()) + " tokens of sequences[" +
                                to_string(b) + "]",
                            to_string(params.q_len));
    }
    const std::int64_t begin = params.begin != nullptr ? params.begin[b] : 0;
    if (begin < 0 || begin > reader.length() - params.q_len) {
      throw InvalidArgument(
          "begin[" + to_string(b) + "]",
          "a token from 0 to the first query's, " + to_string(reader.length() - params.q_len),
          to_string(begin));
    }
    tables.push_back(reader.pages());
    norms.push_back(reader.key_norms());
    ends.push_back(reader.length());
    call.k_len = std::max(call.k_len, reader.length());
  }
  call.ranges.k_begin = params.begin;
  call.ranges.k_end = ends.data();
  // Keys and values are in pages: what the checks see in their place is not read.
  call.k = call.v = call.q;
  CheckAttention(call);
  const AttentionOutputs results{.out = outputs.out,
                                 .tau = outputs.tau,
                                 .support_size = outputs.support_size,
                                 .entropy = outputs.entropy,
                                 .maximum = outputs.maximum};
  CheckOutputs(call, results);
  if (params.batch == 0 || params.q_len == 0) return;
  const CacheLayout layout = CacheLayout::Of(shape, cache.options());
  const std::int64_t layer = params.layer * layout.layer;
  const auto size = static_cast<std::int64_t>(SizeOf(shape.dtype));
  const KeyValuePages pages{.keys = {.tables = tables.data(),
                                     .row_bytes = shape.head_dim * size,
                                     .offset = layer + layout.keys,
                                     .head = layout.key_head},
                            .values = {.tables = tables.data(),
                                       .row_bytes = shape.value_dim * size,
                                       .offset = layer + layout.values,
                                       .head = layout.value_head}};
  call.pages = &pages;
  const decode::Screens screens{.byte_offset = layout.byte_head > 0 ? layer + layout.bytes : -1,
                                .byte_head = layout.byte_head,
                                .range_offset = layout.ranges < 0 ? -1 : layer + layout.ranges,
                                .moment_offset = layout.moments < 0 ? -1 : layer + layout.moments,
                                .fact_head = layout.fact_head,
                                .key_norms = norms.data()};
  const decode::Account account{.mode = params.mode,
                                .certificate = outputs.certificate,
                                .lost = outputs.lost,
                                .scored = outputs.scored,
                                .bytes_read = outputs.bytes_read};
  if (account.asked() || params.q_len <= decode::MostQueries(params.map, screens.bytes())) {
    decode::Forward(context, call, screens, results, account, AllRows(call), nullptr);
    return;
  }
  // One by one: a kernel is chosen by a sequence's own keys, whoever shares the call.
  for (std::int64_t b = 0; b < params.batch; ++b) RunSequence(context, call, results, b);
}

}  // namespace tsallis
