#include "lab/tasks/sequence_tasks.h"

#include "lab/base/errors.h"
#include "lab/base/key_value.h"

namespace tsallis::lab {

const std::vector<SequenceTaskEntry>& SequenceTasks() {
  static const std::vector<SequenceTaskEntry> entries = {
      {"n-back", "for every token, the one two places before it", MakeNBack},
      {"local-count", "for every token, how often its run has shown it before", MakeLocalCount},
      {"flip-flop", "the bit of the last write among writes and ignores", MakeFlipFlop},
      {"copy", "the sequence again", MakeCopy},
      {"reverse", "the sequence backwards", MakeReverse},
      {"sort", "the sequence in ascending order", MakeSort},
      {"mqmtar", "multi-query multi-token associative recall", MakeMqmtar},
      {"delayed-copy", "the first half of the sequence again, after a delay", MakeDelayedCopy},
      {"clrs-text", "the runs of algorithms, written as text", MakeClrsText},
      {"needle", "sentences that are hidden in real text", MakeNeedle},
      {"text", "every byte of real text from those before it", MakeText},
      {"translation", "sentences of one language in another", MakeTranslation}};
  return entries;
}

const SequenceTaskEntry* FindSequenceTask(const std::string& name) {
  for (const SequenceTaskEntry& entry : SequenceTasks()) {
    if (entry.name == name) return &entry;
  }
  return nullptr;
}

TaskPointer MakeSequenceTask(const std::string& name, const std::vector<std::string>& settings) {
  const SequenceTaskEntry* entry = FindSequenceTask(name);
  if (entry == nullptr) {
    std::vector<std::string> names;
    for (const SequenceTaskEntry& known : SequenceTasks()) names.emplace_back(known.name);
    throw UsageError("unknown sequence task \"" + name + "\"" + Suggestion(name, names));
  }
  toml::table table;
  RefuseRepeated(settings);
  for (const std::string& setting : settings) SetKeyValue(table, setting);
  TomlProblems problems("settings of " + name);
  TableReader reader(table, "", problems);
  TaskPointer task = entry->make(reader);
  reader.Finish();
  problems.ThrowIfAny();
  return task;
}

}  // namespace tsallis::lab
