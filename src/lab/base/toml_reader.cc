#include "lab/base/toml_reader.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

#include "lab/base/errors.h"

namespace tsallis::lab {

void TomlProblems::Add(int line, const std::string& key, const std::string& what) {
  // A setting of the command line stands in no line.
  std::string text = line > 0 ? fmt::format("{}:{}: ", file_, line) : file_ + ": ";
  if (!key.empty()) text += key + ": ";
  problems_.emplace(line, text + what);
}

void TomlProblems::Add(const std::string& key, const std::string& what) {
  const auto found = lines_.find(key);
  Add(found == lines_.end() ? 1 : found->second, key, what);
}

void TomlProblems::AddMissing(const std::string& table, const std::string& key) {
  const auto found = lines_.find(table);
  Add(found == lines_.end() ? 1 : found->second, fmt::format("{}.{}", table, key), "missing");
}

void TomlProblems::Remember(const std::string& key, const toml::node& node) {
  lines_[key] = static_cast<int>(node.source().begin.line);
}

void TomlProblems::ThrowIfAny() const {
  if (problems_.empty()) return;
  std::string text;
  for (const auto& [line, problem] : problems_) text += (text.empty() ? "" : "\n") + problem;
  throw UsageError(text);
}

std::string DescribeNode(const toml::node& node) {
  std::ostringstream text;
  switch (node.type()) {
    case toml::node_type::string: text << "the string \"" << node.as_string()->get() << "\""; break;
    case toml::node_type::integer: text << node.as_integer()->get(); break;
    case toml::node_type::floating_point: text << node.as_floating_point()->get(); break;
    case toml::node_type::boolean: text << (node.as_boolean()->get() ? "true" : "false"); break;
    case toml::node_type::array: {
      const toml::array& array = *node.as_array();
      // Long arrays hide the one entry that is wrong; short ones explain themselves.
      if (array.size() > 12) {
        text << "an array of " << array.size();
      } else {
        text << "[";
        for (std::size_t i = 0; i < array.size(); ++i) {
          text << (i == 0 ? "" : ", ") << DescribeNode(*array.get(i));
        }
        text << "]";
      }
      break;
    }
    case toml::node_type::table: text << "a table"; break;
    default: text << "a date or time"; break;
  }
  return text.str();
}

std::string Convert(const toml::node& node, std::string& value) {
  const auto* string = node.as_string();
  if (string == nullptr) return "a string";
  value = string->get();
  return "";
}

std::string Convert(const toml::node& node, double& value) {
  // An integer is a fine way to write a number (alpha = 2); the reverse would hide a mistake (seeds
  // = 1.5).
  if (const auto* integer = node.as_integer()) {
    value = static_cast<double>(integer->get());
    return "";
  }
  const auto* number = node.as_floating_point();
  if (number == nullptr || !std::isfinite(number->get())) return "a finite number";
  value = number->get();
  return "";
}

std::string Convert(const toml::node& node, std::int64_t& value) {
  const auto* integer = node.as_integer();
  if (integer == nullptr) return "an integer";
  value = integer->get();
  return "";
}

std::string Convert(const toml::node& node, int& value) {
  std::int64_t wide = 0;
  std::string expected = Convert(node, wide);
  if (!expected.empty()) return expected;
  if (wide < std::numeric_limits<int>::min() || wide > std::numeric_limits<int>::max()) {
    return "an integer of 32 bits";
  }
  value = static_cast<int>(wide);
  return "";
}

std::string Convert(const toml::node& node, bool& value) {
  const auto* boolean = node.as_boolean();
  if (boolean == nullptr) return "true or false";
  value = boolean->get();
  return "";
}

std::string Convert(const toml::node& node, AnyTable&) { return node.is_table() ? "" : "a table"; }

std::string QuotedJson(const std::string& text) { return nlohmann::json(text).dump(); }

void TableReader::Mistyped(const toml::node& node, const std::string& path,
                           const std::string& expected) {
  problems_.Add(static_cast<int>(node.source().begin.line), path,
                "expected " + expected + ", got " + DescribeNode(node));
}

void TableReader::Finish() {
  for (const auto& [key, node] : table_) {
    const std::string name(key.str());
    if (std::find(known_.begin(), known_.end(), name) != known_.end()) continue;
    problems_.Add(static_cast<int>(key.source().begin.line), Join(name),
                  "unknown key" + Suggestion(name, known_));
  }
  const int line = static_cast<int>(table_.source().begin.line);
  for (const std::string& key : required_missing_) {
    problems_.Add(line, Join(key), "missing");
  }
}

}  // namespace tsallis::lab
