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
      {"decoder", "causal transformer, sandwich or pre-norm, for sequences and language"},
      {"encoder-decoder", "transformer that reads a source and writes a target, for translation"}};
  return entries;
}

}  // namespace tsallis::lab
