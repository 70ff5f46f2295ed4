// The sequence tasks there are. Each has a Make function in its file; a new one is a line here and
// a line in sequence_tasks.cc.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "lab/base/toml_reader.h"
#include "lab/tasks/sequence.h"

namespace tsallis::lab {

// Make functions read the task's own settings from its table; the keys that all tasks share (name,
// lengths) are not theirs.
using TaskPointer = std::unique_ptr<const SequenceTask>;
TaskPointer MakeClrsText(TableReader& table);
TaskPointer MakeCopy(TableReader& table);
TaskPointer MakeDelayedCopy(TableReader& table);
TaskPointer MakeFlipFlop(TableReader& table);
TaskPointer MakeLocalCount(TableReader& table);
TaskPointer MakeMqmtar(TableReader& table);
TaskPointer MakeNBack(TableReader& table);
TaskPointer MakeNeedle(TableReader& table);
TaskPointer MakeReverse(TableReader& table);
TaskPointer MakeSort(TableReader& table);
TaskPointer MakeText(TableReader& table);
TaskPointer MakeTranslation(TableReader& table);

// The text of one file, every token from those before it: windows of any length that fits, one
// after the other. Tokens are those of `trained`, what a model was trained on, if it is a text
// task, else bytes. UsageError for a file that cannot be read or has fewer than two tokens.
TaskPointer MakeFileText(const std::filesystem::path& file, const SequenceTask& trained);

// Checks a count of data symbols.
inline Check<std::int64_t> SymbolCount() {
  return Within<std::int64_t>(2, 1 << 20, "at least two symbols (and at most 2^20)");
}

struct SequenceTaskEntry {
  const char* name;
  const char* description;
  TaskPointer (*make)(TableReader& table);
};

const std::vector<SequenceTaskEntry>& SequenceTasks();

// The entry of that name, or null.
const SequenceTaskEntry* FindSequenceTask(const std::string& name);

// The task of that name with settings as TOML ("symbols=16"). UsageError for an unknown name or
// setting or a bad value.
TaskPointer MakeSequenceTask(const std::string& name,
                             const std::vector<std::string>& settings = {});

}  // namespace tsallis::lab
