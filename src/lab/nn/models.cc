#include "lab/nn/models.h"

#include <stdexcept>

#include "lab/nn/decoder.h"
#include "lab/nn/encoder_decoder.h"

namespace tsallis::lab {
namespace {

struct Entry {
  const char* name;
  const char* description;
  void (*check)(const DecoderConfig& config, const std::string& path);
  std::unique_ptr<SequenceModel> (*make)(const DecoderConfig& config, std::uint64_t seed,
                                         const c10::Device& device);
};

template <class Model>
std::unique_ptr<SequenceModel> Make(const DecoderConfig& config, std::uint64_t seed,
                                    const c10::Device& device) {
  return std::make_unique<Model>(config, seed, device);
}

constexpr Entry kEntries[] = {
    {"decoder", "causal transformer, sandwich or pre-norm, for sequences and language",
     CheckDecoder, Make<Decoder>},
    {"encoder-decoder", "transformer that reads a source and writes a target, for translation",
     CheckEncoderDecoder, Make<EncoderDecoder>},
};

const Entry* FindOrNull(const std::string& architecture) {
  for (const Entry& entry : kEntries) {
    if (architecture == entry.name) return &entry;
  }
  return nullptr;
}

const Entry& Find(const std::string& architecture) {
  if (const Entry* entry = FindOrNull(architecture)) return *entry;
  throw std::logic_error("no model of sequences is called " + architecture);
}

}  // namespace

std::vector<CatalogueEntry> SequenceModels() {
  std::vector<CatalogueEntry> models;
  for (const Entry& entry : kEntries) models.push_back({entry.name, entry.description});
  return models;
}

bool IsSequenceModel(const std::string& name) { return FindOrNull(name) != nullptr; }

void CheckSequenceModel(const std::string& architecture, const DecoderConfig& config,
                        const std::string& path) {
  Find(architecture).check(config, path);
}

std::unique_ptr<SequenceModel> MakeSequenceModel(const std::string& architecture,
                                                 const DecoderConfig& config, std::uint64_t seed,
                                                 const c10::Device& device) {
  return Find(architecture).make(config, seed, device);
}

}  // namespace tsallis::lab
