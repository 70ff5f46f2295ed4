#include "lab/nn/models.h"

#include <stdexcept>

#include "lab/nn/decoder.h"
#include "lab/nn/encoder_decoder.h"

namespace tsallis::lab {
namespace {

struct Entry {
  const char* name;
  void (*check)(const DecoderConfig& config, const std::string& path);
  std::unique_ptr<SequenceModel> (*make)(const DecoderConfig& config, std::uint64_t seed);
};

template <class Model>
std::unique_ptr<SequenceModel> Make(const DecoderConfig& config, std::uint64_t seed) {
  return std::make_unique<Model>(config, seed);
}

const Entry* FindOrNull(const std::string& architecture) {
  static const Entry entries[] = {
      {"decoder", CheckDecoder, Make<Decoder>},
      {"encoder-decoder", CheckEncoderDecoder, Make<EncoderDecoder>},
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
                        const std::string& path) {
  Find(architecture).check(config, path);
}

std::unique_ptr<SequenceModel> MakeSequenceModel(const std::string& architecture,
                                                 const DecoderConfig& config, std::uint64_t seed) {
  return Find(architecture).make(config, seed);
}

}  // namespace tsallis::lab
