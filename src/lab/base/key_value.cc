#include "lab/base/key_value.h"

#include <fmt/format.h>

#include <set>
#include <utility>

#include "lab/base/errors.h"

namespace tsallis::lab {

void Merge(toml::table& root, toml::table&& values) {
  for (auto&& [key, value] : values) {
    toml::node* there = root.get(key.str());
    if (there != nullptr && there->is_table() && value.is_table()) {
      Merge(*there->as_table(), std::move(*value.as_table()));
    } else {
      root.insert_or_assign(key, std::move(value));  // copies and new keys have no line
    }
  }
}

void SetKeyValue(toml::table& root, const std::string& setting) {
  const std::size_t equals = setting.find('=');
  const std::string key = setting.substr(0, equals);
  const std::string value = equals == std::string::npos ? "" : setting.substr(equals + 1);
  const bool named = !key.empty() && key.front() != '.' && key.back() != '.' &&
                     key.find("..") == std::string::npos;
  if (!named || value.empty()) {
    throw UsageError("expected key=value, as in train.lr=1e-3, got \"" + setting + "\"");
  }
  toml::table parsed;
  try {
    parsed = toml::parse("v = " + value);
  } catch (const toml::parse_error&) {
    parsed.clear();
  }
  // A line break could smuggle in further keys.
  if (parsed.size() != 1) parsed = toml::table{{"v", value}};
  toml::table* table = &root;
  std::size_t begin = 0;
  for (std::size_t dot = key.find('.'); dot != std::string::npos; dot = key.find('.', begin)) {
    const std::string name = key.substr(begin, dot - begin);
    if (!table->contains(name)) table->insert(name, toml::table{});
    table = table->get(name)->as_table();
    if (table == nullptr) throw UsageError(fmt::format("\"{}\": \"{}\" is not a table", key, name));
    begin = dot + 1;
  }
  table->insert_or_assign(key.substr(begin), *parsed.get("v"));
}

void RefuseRepeated(const std::vector<std::string>& settings) {
  std::set<std::string> keys;
  for (const std::string& setting : settings) {
    const std::string key = setting.substr(0, setting.find('='));
    if (!keys.insert(key).second) throw UsageError("\"" + key + "\" is set twice");
  }
}

}  // namespace tsallis::lab
