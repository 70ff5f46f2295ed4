#include "lab/config/catalogue.h"

#include "lab/tasks/sequence_tasks.h"

namespace tsallis::lab {

const std::vector<CatalogueEntry>& Tasks() {
  static const std::vector<CatalogueEntry> entries = [] {
    std::vector<CatalogueEntry> all = {
        {"max-retrieval", "class of the item with the largest priority in a set of n"}};
    for (const SequenceTaskEntry& task : SequenceTasks()) {
      all.push_back({task.name, task.description});
    }
    return all;
  }();
  return entries;
}

const std::vector<CatalogueEntry>& Models() {
  static const std::vector<CatalogueEntry> entries = {
      {"set-attention", "two-layer GeLU MLPs around one attention head"},
      {"decoder", "Gemma-2-like decoder, for the sequence tasks"}};
  return entries;
}

const std::vector<CatalogueEntry>& Maps() {
  static const std::vector<CatalogueEntry> entries = {
      {"softmax", "dense; temperature theta"},
      {"entmax", "alpha-entmax, alpha >= 1: sparse above 1 (2 is sparsemax)"},
      {"adaptive-temperature", "softmax, sharpened where its entropy is large"}};
  return entries;
}

const std::vector<CatalogueEntry>& LengthScalings() {
  static const std::vector<CatalogueEntry> entries = {
      {"none", "scores as they are"},
      {"ssmax", "scores times b ln n, b learned"},
      {"scalar", "scores times delta + beta (ln n)^gamma, beta learned"}};
  return entries;
}

const std::vector<CatalogueEntry>& Optimizers() {
  static const std::vector<CatalogueEntry> entries = {{"adam", "Adam, L2 added to the gradient"},
                                                      {"adamw", "Adam, decoupled weight decay"}};
  return entries;
}

std::vector<std::string> Names(const std::vector<CatalogueEntry>& entries) {
  std::vector<std::string> names;
  names.reserve(entries.size());
  for (const CatalogueEntry& entry : entries) names.push_back(entry.name);
  return names;
}

}  // namespace tsallis::lab
