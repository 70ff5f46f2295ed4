// Models of sequences by the names that recipes have for them.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lab/base/catalogue.h"
#include "lab/nn/sequence_model.h"

namespace tsallis::lab {

std::vector<CatalogueEntry> SequenceModels();

// Whether recipes have a model of sequences of this name.
bool IsSequenceModel(const std::string& name);

// `architecture`: "decoder" or "encoder-decoder". UsageError as the models' own checks;
// std::logic_error for another name.
void CheckSequenceModel(const std::string& architecture, const DecoderConfig& config,
                        const std::string& path = "model");
std::unique_ptr<SequenceModel> MakeSequenceModel(const std::string& architecture,
                                                 const DecoderConfig& config, std::uint64_t seed,
                                                 const c10::Device& device = c10::kCPU);

}  // namespace tsallis::lab
