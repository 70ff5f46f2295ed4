// Options of the command line: what their values may be, and what is said of a value that is not.
// The parser's own messages are replaced, so that every mistake reads alike:
//   --threads: expected an integer from 1 to 4096, got 0
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace tsallis::cli {

// Checks for CLI::Option::check.
CLI::Validator IntegerFrom(std::int64_t low, std::int64_t high);
CLI::Validator OneOf(std::vector<std::string> words);

// An option that takes a list, separated by commas: --lengths 64,128. Given twice, the lists follow
// one another.
CLI::Option* AddList(CLI::App& command, const std::string& name, std::vector<std::int64_t>& list,
                     const std::string& help);
CLI::Option* AddList(CLI::App& command, const std::string& name, std::vector<std::string>& list,
                     const std::string& help);

// After a command has declared its options: none takes an empty value, and integers are checked
// before the parser wraps "-1" around or cuts off a number of thirty digits.
void CheckValues(CLI::App& command);

// UsageError that names the option if no files can be made in this folder, which need not exist
// yet: to be called before work that takes hours.
void CheckWritable(const std::string& option, const std::filesystem::path& folder);

// Describes the error of a command line; for a misspelt word it suggests the right one.
std::string DescribeParseError(const CLI::App& app, const CLI::ParseError& error);

}  // namespace tsallis::cli
