// Settings from a command line: `key=value` into a TOML table.
#pragma once

#include <string>
#include <vector>

#include <toml++/toml.h>

namespace tsallis::lab {

// Sets one entry: "write_probability=0.8", "train.lr=1e-4" (tables on the way are made). The value
// is TOML; a word that is not is taken as a string, so that model.positions=nape needs no quotes.
// UsageError if the key or the value is empty, or a key on the way is no table.
void SetKeyValue(toml::table& root, const std::string& setting);

// UsageError if two settings have the same key.
void RefuseRepeated(const std::vector<std::string>& settings);

// Sets every entry of `values` in `root`, tables entry by entry. Entries keep the lines that they
// were read from, for errors. `values` is left with nothing of use.
void Merge(toml::table& root, toml::table&& values);

}  // namespace tsallis::lab
