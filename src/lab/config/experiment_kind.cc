#include "lab/config/experiment_kind.h"

#include <algorithm>

namespace tsallis::lab {
namespace {

using Listed = std::vector<CatalogueEntry> (ExperimentKind::*)() const;

std::vector<CatalogueEntry> All(Listed listed) {
  std::vector<CatalogueEntry> all;
  for (const ExperimentKind* kind : ExperimentKinds()) {
    for (CatalogueEntry& entry : (kind->*listed)()) all.push_back(std::move(entry));
  }
  return all;
}

const ExperimentKind& KindOf(Listed listed, const std::string& name) {
  for (const ExperimentKind* kind : ExperimentKinds()) {
    const std::vector<std::string> names = Names((kind->*listed)());
    if (std::find(names.begin(), names.end(), name) != names.end()) return *kind;
  }
  return *ExperimentKinds().front();
}

}  // namespace

const std::vector<const ExperimentKind*>& ExperimentKinds() {
  static const std::vector<const ExperimentKind*> kinds = {&SetKind(), &SequenceKind()};
  return kinds;
}

const std::vector<CatalogueEntry>& Tasks() {
  static const std::vector<CatalogueEntry> entries = All(&ExperimentKind::Tasks);
  return entries;
}

const std::vector<CatalogueEntry>& Models() {
  static const std::vector<CatalogueEntry> entries = All(&ExperimentKind::Models);
  return entries;
}

const ExperimentKind& KindOfTask(const std::string& name) {
  return KindOf(&ExperimentKind::Tasks, name);
}

const ExperimentKind& KindOfModel(const std::string& name) {
  return KindOf(&ExperimentKind::Models, name);
}

}  // namespace tsallis::lab
