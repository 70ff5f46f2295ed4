#include "lab/nn/models.h"

#include <ATen/ATen.h>

#include <stdexcept>

#include "lab/nn/block_decoder.h"
#include "lab/nn/decoder.h"
#include "lab/nn/encoder_decoder.h"

namespace tsallis::lab {
namespace {

struct Entry {
  const char* name;
  void (*check)(const DecoderConfig& config, const std::string& path);
  void (*check_blocks)(const DecoderConfig& config, const std::string& path);
  std::unique_ptr<SequenceModel> (*make)(const DecoderConfig& config, std::uint64_t seed,
                                         const c10::Device& device, bool splits);
};

std::unique_ptr<SequenceModel> MakeDecoder(const DecoderConfig& config, std::uint64_t seed,
                                           const c10::Device& device, bool splits) {
  if (device.is_cpu() && !splits) return std::make_unique<Decoder>(config, seed);
  return std::make_unique<BlockDecoder>(config, seed, device);
}

std::unique_ptr<SequenceModel> MakeEncoderDecoder(const DecoderConfig& config, std::uint64_t seed,
                                                  const c10::Device& device, bool /*splits*/) {
  return std::make_unique<EncoderDecoder>(config, seed, device);
}

const Entry* FindOrNull(const std::string& architecture) {
  static const Entry entries[] = {
      {"decoder", CheckDecoder, CheckBlockDecoder, MakeDecoder},
      {"encoder-decoder", CheckEncoderDecoder, CheckEncoderDecoder, MakeEncoderDecoder},
  };
  for (const Entry& entry : entries) {
    if (architecture == entry.name) return &entry;
  }
  return nullptr;
}

const Entry& Find(const std::string& architecture) {
  if (const Entry* entry = FindOrNull(architecture)) return *entry;
  throw std::logic_error("no model of sequences is called " + architecture);
}

}  // namespace

bool IsSequenceModel(const std::string& name) { return FindOrNull(name) != nullptr; }

void CheckSequenceModel(const std::string& architecture, const DecoderConfig& config,
                        bool of_stages, const std::string& path) {
  const Entry& entry = Find(architecture);
  (of_stages ? entry.check : entry.check_blocks)(config, path);
}

std::unique_ptr<SequenceModel> MakeSequenceModel(const std::string& architecture,
                                                 const DecoderConfig& config, std::uint64_t seed,
                                                 const c10::Device& device, bool splits) {
  return Find(architecture).make(config, seed, device, splits);
}

std::unique_ptr<SequenceModel> CopyOnCpu(const SequenceModel& model) {
  std::unique_ptr<SequenceModel> copy = MakeSequenceModel(model.Architecture(), model.Config(), 1);
  at::Tensor(copy->FlatParameters()).copy_(model.FlatParameters());
  return copy;
}

}  // namespace tsallis::lab
