// Attention on a cache: checks, and the call of the kernel.
#include <string>
#include <vector>

#include "attention/check.h"
#include "attention/cpu/decode/decode.h"
#include "attention/pages.h"
#include "cache/reader.h"
#include "tsallis/error.h"
#include "tsallis/kv_cache.h"

namespace tsallis {
namespace {

using std::to_string;

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

// Throws unless the kernel of lists serves a call that no other kernel can answer.
void CheckServed(const AttentionParams& call, const decode::Account& account) {
  std::string why;
  if (ServedByLists(call, &why)) return;
  if (account.mode.keys != DecodeKeys::kExact) {
    throw InvalidArgument("mode", "the exact one with " + why, "another");
  }
  const char* statistic = account.certificate != nullptr ? "certificate"
                          : account.lost != nullptr      ? "lost"
                          : account.scored != nullptr    ? "scored"
                                                         : "bytes_read";
  throw InvalidArgument(statistic, "none of this statistic with " + why, "a call for it");
}

// The call without its keys.
AttentionParams CallOf(const KvCache& cache, const DecodeParams& params) {
  const KvCacheShape& shape = cache.shape();
  AttentionParams call = params;
  if (call.kv_heads == 0) call.kv_heads = shape.kv_heads;
  const auto within = [&](std::int64_t number, std::int64_t least) {
    return number >= least && number <= shape.kv_heads;
  };
  if (!within(params.kv_first, 0) || !within(params.kv_step, 1) || !within(call.kv_heads, 1) ||
      params.kv_first + (call.kv_heads - 1) * params.kv_step >= shape.kv_heads) {
    throw InvalidArgument("kv_heads",
                          "some of the cache's " + to_string(shape.kv_heads) + " key heads",
                          to_string(call.kv_heads) + " from " + to_string(params.kv_first) +
                              " on, " + to_string(params.kv_step) + " apart");
  }
  if (params.heads < 1 || params.heads % call.kv_heads != 0) {
    const bool all = params.kv_heads == 0;
    throw InvalidArgument("heads",
                          std::string("a multiple of the ") + (all ? "cache's " : "") +
                              to_string(call.kv_heads) + " key heads",
                          to_string(params.heads));
  }
  if (params.q.dtype != shape.dtype) {
    throw InvalidArgument("q", std::string("the dtype of the cache, ") + Name(shape.dtype),
                          Name(params.q.dtype));
  }
  if (params.batch > 0 && params.sequences == nullptr) {
    throw InvalidArgument("sequences", to_string(params.batch) + " of them", "null");
  }
  call.head_dim = shape.head_dim;
  call.value_dim = shape.value_dim;
  call.k_len = 0;
  call.mask.causal = true;
  call.mask.alignment = Alignment::kEnd;
  call.ranges = {};
  // The checks see q in place of keys and values, and do not read it.
  call.k = call.v = call.q;
  return call;
}

}  // namespace

void Decode(const Context& context, const KvCache& cache, const DecodeParams& params,
            const DecodeOutputs& outputs) {
  CheckMode(cache.options(), params.mode);
  const KvCacheShape& shape = cache.shape();
  AttentionParams call = CallOf(cache, params);
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
  if (params.q_len == 0) return;  // no rows that could stand in for the keys in these checks
  CheckAttention(call);
  const AttentionOutputs results{.out = outputs.out,
                                 .tau = outputs.tau,
                                 .support_size = outputs.support_size,
                                 .entropy = outputs.entropy,
                                 .maximum = outputs.maximum};
  CheckOutputs(call, results);
  if (params.batch == 0) return;
  const CacheLayout layout = CacheLayout::Of(shape, cache.options());
  const std::int64_t layer = params.layer * layout.layer;
  const auto size = static_cast<std::int64_t>(SizeOf(shape.dtype));
  const auto rows = [&](std::int64_t columns, std::int64_t offset, std::int64_t head) {
    return KeyValuePages::RowPages{.tables = tables.data(),
                                   .row_bytes = columns * size,
                                   .offset = layer + offset + params.kv_first * head,
                                   .head = params.kv_step * head};
  };
  KeyValuePages pages;
  pages.keys = rows(shape.head_dim, layout.keys, layout.key_head);
  pages.values = rows(shape.value_dim, layout.values, layout.value_head);
  call.pages = &pages;
  const auto beside = [&](bool there, std::int64_t offset, std::int64_t head) {
    return there ? layer + offset + params.kv_first * head : -1;
  };
  const decode::Screens screens{
      .byte_offset = beside(layout.byte_head > 0, layout.bytes, layout.byte_head),
      .byte_head = params.kv_step * layout.byte_head,
      .range_offset = beside(layout.ranges >= 0, layout.ranges, layout.fact_head),
      .moment_offset = beside(layout.moments >= 0, layout.moments, layout.fact_head),
      .fact_head = params.kv_step * layout.fact_head,
      .byte_tables = tables.data(),
      .key_norms = norms.data(),
      .norm_first = params.kv_first,
      .norm_step = params.kv_step};
  const decode::Account account{.mode = params.mode,
                                .certificate = outputs.certificate,
                                .lost = outputs.lost,
                                .scored = outputs.scored,
                                .bytes_read = outputs.bytes_read};
  if (!account.asked()) {
    RunForwardOfSequences(context, call, screens, results);
    return;
  }
  CheckServed(call, account);
  decode::Forward(context, call, screens, results, account, AllRows(call), nullptr);
}

}  // namespace tsallis
