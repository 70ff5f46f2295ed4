// Reads TOML into structs by visiting their fields. A struct is described once, by a free function
//
//   void Describe(TableReader& table, TrainConfig& train) {
//     table.Optional("lr", train.lr, Positive<double>());
//   }
//
// and that declaration yields the parsing, the check of type and value, and the list of known keys
// from which an unknown one gets its suggestion. Problems are collected, so that one run shows them
// all.
#pragma once

#include <cmath>
#include <concepts>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <toml++/toml.h>

#include "lab/base/suggest.h"

namespace tsallis::lab {

// Collects the mistakes of a file, and knows the line of each of its keys.
class TomlProblems {
 public:
  explicit TomlProblems(std::string file) : file_(std::move(file)) {}

  void Add(int line, const std::string& key, const std::string& what);
  // For checks across fields, made after reading: the line is looked up by the dotted path.
  void Add(const std::string& key, const std::string& what);
  // For a key that should stand in this table and does not.
  void AddMissing(const std::string& table, const std::string& key);
  void Remember(const std::string& key, const toml::node& node);
  bool Given(const std::string& key) const { return lines_.contains(key); }
  // The dotted keys that readers asked for, whether they are given or not.
  const std::set<std::string>& Asked() const { return asked_; }
  void Ask(const std::string& key) { asked_.insert(key); }
  void ThrowIfAny() const;  // UsageError: one line a problem, in the order of the file

 private:
  std::string file_;
  std::map<std::string, int> lines_;
  std::set<std::string> asked_;
  std::multimap<int, std::string> problems_;
};

// Returns what was expected of a value, or nothing if it is fine.
template <class T>
using Check = std::function<std::string(const T&)>;

// "a string (\"fast\")": how an error names the value it met.
std::string DescribeNode(const toml::node& node);

// Converts one value; returns what was expected if it is something else.
std::string QuotedJson(const std::string& text);
std::string Convert(const toml::node& node, std::string& value);
std::string Convert(const toml::node& node, double& value);
std::string Convert(const toml::node& node, std::int64_t& value);
std::string Convert(const toml::node& node, int& value);
std::string Convert(const toml::node& node, bool& value);

// A table that is looked at elsewhere.
struct AnyTable {};
std::string Convert(const toml::node& node, AnyTable& value);

// A value as JSON.
template <std::same_as<std::string> T>
std::string JsonText(const T& value) {
  return QuotedJson(value);
}
template <std::integral T>
std::string JsonText(const T& value) {
  return fmt::format("{}", value);
}
template <std::same_as<double> T>
std::string JsonText(const T& value) {
  return fmt::format("{}", value);
}

template <class T>
std::string Convert(const toml::node& node, std::vector<T>& value) {
  const toml::array* array = node.as_array();
  value.clear();
  std::string expected;
  if (array == nullptr) {
    T unused{};
    expected = Convert(toml::array{}, unused);
    return "an array, each entry " + expected;
  }
  for (const toml::node& entry : *array) {
    expected = Convert(entry, value.emplace_back());
    if (!expected.empty()) return "an array, each entry " + expected;
  }
  return "";
}

template <class T>
std::string Convert(const toml::node& node, std::optional<T>& value) {
  return Convert(node, value.emplace());
}

class TableReader;

template <class T>
concept Described = requires(TableReader& table, T& value) {
  Describe(table, value);
};

class TableReader {
 public:
  TableReader(const toml::table& table, std::string path, TomlProblems& problems)
      : table_(table), path_(std::move(path)), problems_(problems) {}

  // `help` is for visitors that list keys.
  template <class T>
  void Required(const std::string& key, T&& value, Check<std::decay_t<T>> check = {},
                const char* /*help*/ = "") {
    if (!Read(key, value, check)) required_missing_.push_back(key);
  }
  template <class T>
  void Optional(const std::string& key, T&& value, Check<std::decay_t<T>> check = {},
                const char* /*help*/ = "") {
    Read(key, value, check);
  }
  bool Has(const std::string& key) const { return table_.contains(key); }
  // The numbers, strings and switches that were asked for so far, defaults included, as JSON texts.
  const std::vector<std::pair<std::string, std::string>>& Scalars() const { return scalars_; }
  // A value that is fine by itself but not beside the others.
  void Problem(const std::string& key, const std::string& what) { problems_.Add(Join(key), what); }
  // Reports the keys that nothing asked for and the required ones that are missing.
  void Finish();

 private:
  template <class T>
  bool Read(const std::string& key, T& value, const Check<std::decay_t<T>>& check) {
    known_.push_back(key);
    problems_.Ask(Join(key));
    const toml::node* node = table_.get(key);
    if (node != nullptr) {
      const std::string path = Join(key);
      problems_.Remember(path, *node);
      ReadNode(*node, path, value, check);
    }
    if constexpr (requires { JsonText(value); }) scalars_.emplace_back(key, JsonText(value));
    return node != nullptr;
  }

  template <class T>
  void ReadNode(const toml::node& node, const std::string& path, T& value, const Check<T>& check) {
    if constexpr (Described<T>) {
      const toml::table* table = node.as_table();
      if (table == nullptr) return Mistyped(node, path, "a table");
      TableReader reader(*table, path, problems_);
      Describe(reader, value);
      reader.Finish();
    } else {
      T before(value);
      std::string expected = Convert(node, value);
      if (expected.empty() && check) expected = check(value);
      if (expected.empty()) return;
      Mistyped(node, path, expected);
      // Who reads on may count with a value that passes its check.
      if constexpr (std::is_copy_assignable_v<T>) value = std::move(before);
    }
  }

  // A table that may be left out.
  template <Described T>
  void ReadNode(const toml::node& node, const std::string& path, std::optional<T>& value,
                const Check<std::optional<T>>&) {
    ReadNode(node, path, value.emplace(), {});
  }

  // [[key]]: an array of tables, each called by its name.
  template <Described T>
  void ReadNode(const toml::node& node, const std::string& path, std::vector<T>& values,
                const Check<std::vector<T>>&) {
    const toml::array* array = node.as_array();
    if (array == nullptr || !array->is_array_of_tables()) {
      return Mistyped(node, path, "tables [[" + path + "]]");
    }
    values.reserve(array->size());
    for (const toml::node& entry : *array) {
      const std::string name = (*entry.as_table())["name"].value_or(std::string());
      const std::string entry_path = name.empty() ? fmt::format("{}.#{}", path, values.size() + 1)
                                                  : fmt::format("{}.{}", path, name);
      problems_.Remember(entry_path, entry);
      ReadNode(entry, entry_path, values.emplace_back(), {});
    }
  }

  // [key.name]: a table of tables, named freely.
  template <Described T>
  void ReadNode(const toml::node& node, const std::string& path, std::map<std::string, T>& values,
                const Check<std::map<std::string, T>>&) {
    const toml::table* table = node.as_table();
    if (table == nullptr) return Mistyped(node, path, "tables [" + path + ".<name>]");
    for (const auto& [key, entry] : *table) {
      const std::string name(key.str());
      const std::string below = fmt::format("{}.{}", path, name);
      problems_.Remember(below, entry);
      ReadNode(entry, below, values[name], {});
    }
  }

  std::string Join(const std::string& key) const { return path_.empty() ? key : path_ + "." + key; }
  void Mistyped(const toml::node& node, const std::string& path, const std::string& expected);

  const toml::table& table_;
  std::string path_;
  TomlProblems& problems_;
  std::vector<std::string> known_;
  std::vector<std::string> required_missing_;
  std::vector<std::pair<std::string, std::string>> scalars_;
};

// ---- checks -------------------------------------------------------------------------------------

template <class T>
Check<T> Positive() {
  return
      [](const T& x) { return x > 0 && x <= std::numeric_limits<T>::max() ? "" : "a value > 0"; };
}

template <class T>
Check<T> Within(T low, T high, std::string expected) {
  return [low, high, expected = std::move(expected)](const T& x) {
    return x >= low && x <= high ? "" : expected;  // false for NaN
  };
}

inline Check<std::string> OneOf(std::vector<std::string> known) {
  return [known = std::move(known)](const std::string& word) -> std::string {
    for (const std::string& candidate : known) {
      if (candidate == word) return "";
    }
    std::string text;
    for (const std::string& candidate : known) {
      text += (text.empty() ? "\"" : " or \"") + candidate + "\"";
    }
    return text;
  };
}

template <class T>
Check<std::optional<T>> IfGiven(Check<T> check) {
  return [check = std::move(check)](const std::optional<T>& x) { return x ? check(*x) : ""; };
}

}  // namespace tsallis::lab
