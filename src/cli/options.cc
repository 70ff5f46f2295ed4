#include "cli/options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <optional>
#include <sstream>
#include <utility>

#include "lab/base/errors.h"
#include "lab/base/suggest.h"

namespace tsallis::cli {
namespace {

// The whole word as a decimal number; nothing if it is none, or too large for T. Zeros in front are
// refused: the parser would read 010 as eight.
template <class T>
std::optional<T> Integer(const std::string& word) {
  const std::size_t digits = word.starts_with("-") ? 1 : 0;
  if (word.size() > digits + 1 && word[digits] == '0') return std::nullopt;
  T value = 0;
  const char* end = word.data() + word.size();
  const auto [stopped, error] = std::from_chars(word.data(), end, value);
  if (error != std::errc() || stopped != end) return std::nullopt;
  return value;
}

std::string Expected(const std::string& what, const std::string& got) {
  return fmt::format("expected {}, got {}", what, got.empty() ? "nothing" : got);
}

template <class T>
std::string AnInteger() {
  return fmt::format("an integer from {} to {}", std::numeric_limits<T>::min(),
                     std::numeric_limits<T>::max());
}

template <class T>
CLI::Validator IsInteger() {
  const auto check = [](const std::string& word) {
    return Integer<T>(word) ? std::string() : Expected(AnInteger<T>(), word);
  };
  return CLI::Validator(check, "");
}

// The items of "64,128"; an empty one is kept, for the reader to refuse.
std::vector<std::string> Items(const std::vector<std::string>& words) {
  std::vector<std::string> items;
  for (const std::string& word : words) {
    std::size_t begin = 0;
    for (std::size_t comma = word.find(','); comma != std::string::npos;
         comma = word.find(',', begin)) {
      items.push_back(word.substr(begin, comma - begin));
      begin = comma + 1;
    }
    items.push_back(word.substr(begin));
  }
  return items;
}

template <class T, class Read>
CLI::Option* AddItems(CLI::App& command, const std::string& name, std::vector<T>& list,
                      const std::string& help, const std::string& expected, const Read& read) {
  const auto take = [&list, name, expected, read](const std::vector<std::string>& words) {
    list.clear();
    for (const std::string& item : Items(words)) {
      const std::optional<T> value = read(item);
      if (!value) {
        const std::string got = fmt::format("{}", fmt::join(words, ","));
        throw CLI::ValidationError(name, Expected(expected, got));
      }
      list.push_back(*value);
    }
  };
  return command.add_option_function<std::vector<std::string>>(name, take, help)
      ->type_name("LIST")
      ->allow_extra_args(false);  // what follows is another argument
}

const CLI::App& Parsed(const CLI::App& app) {
  const auto parsed = app.get_subcommands();
  return parsed.empty() ? app : *parsed.front();
}

// The parser knows that a word is unknown; what was meant is for us to say.
std::vector<std::string> CommandNames(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands({})) names.push_back(command->get_name());
  return names;
}

std::string DescribeExtras(const CLI::App& app) {
  const CLI::App& command = Parsed(app);
  for (const std::string& word : app.remaining(/*recurse=*/true)) {
    if (!word.starts_with("-")) {
      if (&command != &app) return "\"" + word + "\" was not expected";
      return "unknown command \"" + word + "\"" + lab::Suggestion(word, CommandNames(app));
    }
    std::vector<std::string> options;
    for (const CLI::Option* option : command.get_options()) {
      for (const std::string& name : option->get_lnames()) options.push_back("--" + name);
    }
    return "unknown option \"" + word + "\"" +
           lab::Suggestion(word.substr(0, word.find('=')), options);
  }
  return "";
}

// Says in words which values an option takes; its check says so of integers.
std::string Takes(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  if (type.starts_with("UINT")) return AnInteger<std::uint64_t>();
  if (type.starts_with("INT")) return "an integer";
  if (type.starts_with("FLOAT")) return "a number";
  return "a value";
}

// "--seed: At Most 1 required but received 2" and the like, which name the option first.
std::string DescribeOption(const CLI::App& command, const CLI::ParseError& error) {
  const std::string said = error.what();
  const std::string name = said.substr(0, said.find(": "));
  const CLI::Option* option = command.get_option_no_throw(name);
  if (option == nullptr) return said;
  if (error.get_name() == "ArgumentMismatch" && option->count() > 1) {
    return fmt::format("{}: given {} times, expected once", name, option->count());
  }
  if (error.get_name() == "ArgumentMismatch") return name + ": " + Expected(Takes(*option), "");
  return said;
}

}  // namespace

CLI::Validator IntegerFrom(std::int64_t low, std::int64_t high) {
  const auto check = [low, high](const std::string& word) {
    const std::optional<std::int64_t> value = Integer<std::int64_t>(word);
    if (value && *value >= low && *value <= high) return std::string();
    return Expected(fmt::format("an integer from {} to {}", low, high), word);
  };
  return CLI::Validator(check, fmt::format("{} to {}", low, high));
}

CLI::Validator OneOf(std::vector<std::string> words) {
  const std::string listed = fmt::format("{}", fmt::join(words, ", "));
  const auto check = [words = std::move(words), listed](const std::string& word) {
    if (std::find(words.begin(), words.end(), word) != words.end()) return std::string();
    const std::string nearest = lab::Nearest(word, words);
    return Expected("one of " + listed, word) +
           (nearest.empty() ? "" : "; did you mean \"" + nearest + "\"?");
  };
  return CLI::Validator(check, listed);
}

CLI::Option* AddList(CLI::App& command, const std::string& name, std::vector<std::int64_t>& list,
                     const std::string& help) {
  return AddItems(command, name, list, help, "integers separated by commas",
                  [](const std::string& item) { return Integer<std::int64_t>(item); });
}

CLI::Option* AddList(CLI::App& command, const std::string& name, std::vector<std::string>& list,
                     const std::string& help) {
  return AddItems(command, name, list, help, "names separated by commas",
                  [](const std::string& item) {
                    return item.empty() ? std::nullopt : std::optional<std::string>(item);
                  });
}

void CheckValues(CLI::App& command) {
  for (CLI::Option* option : command.get_options()) {
    if (option->get_items_expected_max() == 0) continue;  // a flag
    const std::string type = option->get_type_name();
    if (type.starts_with("UINT")) {
      option->check(IsInteger<std::uint64_t>());
    } else if (type.starts_with("INT")) {
      option->check(IsInteger<std::int64_t>());
    } else if (type != "LIST") {
      option->check(CLI::Validator(
          [](const std::string& word) {
            return word.empty() ? Expected("a value", word) : std::string();
          },
          ""));
    }
  }
}

void CheckWritable(const std::string& option, const std::filesystem::path& folder) {
  std::filesystem::path there = std::filesystem::absolute(folder);
  while (!std::filesystem::exists(there) && there.has_relative_path()) there = there.parent_path();
  if (std::filesystem::is_directory(there) && access(there.c_str(), W_OK) == 0) return;
  throw lab::UsageError(
      fmt::format("{}: expected a folder that can be written, got {}", option, folder.string()));
}

std::string DescribeParseError(const CLI::App& app, const CLI::ParseError& error) {
  // A missing name is less to the point than the unknown option before it.
  if (std::string extras = DescribeExtras(app); !extras.empty()) return extras;
  const CLI::App& command = Parsed(app);
  const std::string said = error.what();
  if (error.get_name() == "RequiredError" && &command == &app) {
    return fmt::format("expected a command: {}", fmt::join(CommandNames(app), ", "));
  }
  if (error.get_name() == "ExcludesError") {
    const std::size_t word = said.find(" excludes ");
    if (word != std::string::npos) {
      return fmt::format("{} and {} cannot be given together", said.substr(0, word),
                         said.substr(word + std::string(" excludes ").size()));
    }
  }
  return DescribeOption(command, error);
}

}  // namespace tsallis::cli
