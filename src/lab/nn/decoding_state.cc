#include "lab/nn/decoding_state.h"

#include <string>
#include <utility>

#include "lab/base/errors.h"
#include "tsallis/error.h"

namespace tsallis::lab {
namespace {

KvCacheShape ShapeOf(const DecoderConfig& config) {
  const DType dtype = config.compute == "bfloat16" ? DType::kBFloat16 : DType::kFloat32;
  return {config.layers, config.heads, config.HeadDim(), config.HeadDim(), dtype};
}

TextCache CacheOf(const DecoderConfig& config, std::int64_t max_bytes, const c10::Device& device) {
  bool sparse = false;
  for (std::int64_t l = 0; l < config.layers; ++l) {
    for (std::int64_t h = 0; h < config.heads; ++h) {
      const AttentionConfig head = config.Head(l, h);
      sparse = sparse || head.map == "entmax";
      if (head.positions.scaling.kind == "ntk") {
        throw UsageError(
            "a model whose positions are scaled by \"ntk\" turns its keys by the length of the "
            "text: they cannot be kept from one token to the next");
      }
    }
  }
  if (!device.is_cpu()) {
    return TextCache(std::in_place_type<DevicePages>, ShapeOf(config), max_bytes, device);
  }
  const KeyScreen screen = sparse ? KeyScreen::kBytes : KeyScreen::kNone;
  return TextCache(std::in_place_type<KvCache>, ShapeOf(config),
                   KvCacheOptions{.screen = screen, .max_bytes = max_bytes});
}

}  // namespace

DecodingState::DecodingState(const DecoderConfig& config, bool reads_sources,
                             std::int64_t max_bytes, const c10::Device& device, Model model)
    : cache_(CacheOf(config, max_bytes, device)),
      reads_sources_(reads_sources),
      model_(std::move(model)) {}

DecodingState::Sequence DecodingState::Create() {
  const auto create = [&](auto& cache) {
    const Sequence sequence = cache.Create();
    if (reads_sources_) sources_.emplace(sequence, cache.Create());
    return sequence;
  };
  return std::visit(create, cache_);
}

DecodingState::Sequence DecodingState::Fork(Sequence sequence) {
  const auto fork_it = [&](auto& cache) {
    const Sequence fork = cache.Fork(sequence);
    if (reads_sources_) sources_.emplace(fork, cache.Fork(SourceOf(sequence)));
    return fork;
  };
  return std::visit(fork_it, cache_);
}

void DecodingState::Free(Sequence sequence) {
  const auto free = [&](auto& cache) {
    if (reads_sources_) {
      cache.Free(SourceOf(sequence));
      sources_.erase(sequence);
    }
    cache.Free(sequence);
  };
  std::visit(free, cache_);
}

at::Tensor DecodingState::Extend(const std::vector<Sequence>& sequences,
                                 const std::vector<std::vector<std::int64_t>>& tokens) {
  std::vector<Sequence> sources;
  std::vector<std::pair<Sequence, std::int64_t>> before;
  const auto note = [&](Sequence sequence) {
    before.emplace_back(sequence, LengthOf(cache_, sequence));
  };
  for (const Sequence sequence : sequences) {
    note(sequence);
    if (!reads_sources_) continue;
    sources.push_back(SourceOf(sequence));
    note(sources.back());
  }
  try {
    return model_({cache_, sequences, sources, tokens});
  } catch (...) {
    const auto truncate = [&](auto& cache) {
      for (const auto& [sequence, length] : before) cache.Truncate(sequence, length);
    };
    std::visit(truncate, cache_);
    throw;
  }
}

DecodingState::Sequence DecodingState::SourceOf(Sequence sequence) const {
  const auto found = sources_.find(sequence);
  if (found == sources_.end()) {
    throw InvalidArgument("sequence", "one that is there", std::to_string(sequence));
  }
  return found->second;
}

}  // namespace tsallis::lab
