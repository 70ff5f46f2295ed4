#include "lab/report/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

namespace tsallis::lab {
namespace {

struct CodePoint {
  char32_t value = 0;
  std::size_t bytes = 1;
};

// The code point at the head of `text`, which is not empty. What is not UTF-8 comes back byte by
// byte as U+FFFD.
CodePoint Decode(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  if (lead < 0x80) return {lead, 1};
  const std::size_t bytes = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : lead >= 0xC2 ? 2 : 0;
  if (bytes == 0 || lead > 0xF4 || text.size() < bytes) return {0xFFFD, 1};
  char32_t value = lead & (0xFFU >> (bytes + 1));
  for (std::size_t i = 1; i < bytes; ++i) {
    const auto next = static_cast<unsigned char>(text[i]);
    if ((next & 0xC0U) != 0x80) return {0xFFFD, 1};
    value = (value << 6) | (next & 0x3FU);
  }
  return {value, bytes};
}

int CodePointWidth(char32_t c) {
  const auto in = [c](char32_t first, char32_t last) { return first <= c && c <= last; };
  if (in(0x0300, 0x036F) || in(0x1AB0, 0x1AFF) || in(0x1DC0, 0x1DFF) || in(0x200B, 0x200F) ||
      in(0x20D0, 0x20FF) || in(0xFE00, 0xFE0F) || in(0xFE20, 0xFE2F)) {
    return 0;  // combining marks, joiners, variation selectors
  }
  if (in(0x1100, 0x115F) || in(0x2E80, 0x303E) || in(0x3041, 0xA4CF) || in(0xAC00, 0xD7A3) ||
      in(0xF900, 0xFAFF) || in(0xFE30, 0xFE6F) || in(0xFF00, 0xFF60) || in(0xFFE0, 0xFFE6) ||
      in(0x1F300, 0x1F64F) || in(0x1F900, 0x1F9FF) || in(0x20000, 0x3FFFD)) {
    return 2;  // East Asian wide, emoji
  }
  return 1;
}

constexpr std::string_view kReset = "\033[0m";
constexpr std::string_view kBold = "\033[1m";
constexpr std::string_view kDim = "\033[2m";
constexpr std::string_view kGreen = "\033[32m";
constexpr std::string_view kYellow = "\033[33m";
constexpr std::string_view kRed = "\033[31m";

// A colour to find rows by, not a test: at most a point below the paper, at most three, more.
std::string_view ColorOf(double difference) {
  return difference >= -1.0 ? kGreen : difference >= -3.0 ? kYellow : kRed;
}

// Text padded before it is coloured, so that escapes take no columns.
std::string Paint(std::string text, std::string_view color, bool on) {
  return on && !color.empty() ? fmt::format("{}{}{}", color, text, kReset) : std::move(text);
}

std::string Ours(const ResultRow& row) {
  return row.seeds > 1 ? fmt::format("{:.1f} ±{:.1f}", row.accuracy_mean, row.accuracy_std)
                       : fmt::format("{:.1f}", row.accuracy_mean);
}

// The row with the best mean of each length; methods that tie share it.
bool IsBest(const StudyResults& results, const ResultRow& row) {
  return std::none_of(results.rows.begin(), results.rows.end(), [&](const ResultRow& other) {
    return other.n == row.n &&
           std::round(other.accuracy_mean * 10.0) > std::round(row.accuracy_mean * 10.0);
  });
}

}  // namespace

int DisplayWidth(std::string_view text) {
  int width = 0;
  while (!text.empty()) {
    const CodePoint c = Decode(text);
    width += CodePointWidth(c.value);
    text.remove_prefix(c.bytes);
  }
  return width;
}

std::string PadRight(std::string_view text, int width) {
  return std::string(text) + std::string(std::max(0, width - DisplayWidth(text)), ' ');
}

std::string PadLeft(std::string_view text, int width) {
  return std::string(std::max(0, width - DisplayWidth(text)), ' ') + std::string(text);
}

std::string Ellipsize(std::string_view text, int width) {
  if (DisplayWidth(text) <= width) return std::string(text);
  if (width <= 0) return "";
  std::string cut;
  int used = 1;  // the ellipsis
  while (!text.empty()) {
    const CodePoint c = Decode(text);
    used += CodePointWidth(c.value);
    if (used > width) break;
    cut += text.substr(0, c.bytes);
    text.remove_prefix(c.bytes);
  }
  return cut + "…";
}

std::vector<std::int64_t> Lengths(const StudyResults& results) {
  std::set<std::int64_t> lengths;
  for (const ResultRow& row : results.rows) lengths.insert(row.n);
  return {lengths.begin(), lengths.end()};
}

std::vector<MethodInfo> MethodsInOrder(const StudyResults& results) {
  std::vector<MethodInfo> methods = results.methods;
  for (MethodInfo& method : methods) {
    if (method.label.empty()) method.label = method.name;
  }
  for (const ResultRow& row : results.rows) {
    const bool known = std::any_of(methods.begin(), methods.end(), [&](const MethodInfo& method) {
      return method.name == row.method;
    });
    if (!known) methods.push_back({row.method, row.method});
  }
  return methods;
}

const ResultRow* FindRow(const StudyResults& results, const std::string& method, std::int64_t n) {
  const auto found =
      std::find_if(results.rows.begin(), results.rows.end(),
                   [&](const ResultRow& row) { return row.n == n && row.method == method; });
  return found == results.rows.end() ? nullptr : &*found;
}

std::string SeedText(const StudyResults& results) {
  if (results.rows.empty()) return "no seeds";
  const auto [least, most] =
      std::minmax_element(results.rows.begin(), results.rows.end(),
                          [](const ResultRow& a, const ResultRow& b) { return a.seeds < b.seeds; });
  if (most->seeds == 1) return "one seed";
  if (least->seeds == most->seeds) return fmt::format("{} seeds", most->seeds);
  return fmt::format("{} to {} seeds", least->seeds, most->seeds);
}

std::optional<double> Difference(const ResultRow& row) {
  if (!row.paper) return std::nullopt;
  return row.accuracy_mean - *row.paper;
}

std::string SignedPoints(double difference) {
  std::string text = fmt::format("{:+.1f}", difference);
  return text == "+0.0" || text == "-0.0" ? "0.0" : text;
}

std::string TerminalTable(const StudyResults& results, const TableOptions& options) {
  const std::vector<MethodInfo> methods = MethodsInOrder(results);
  const std::vector<std::int64_t> lengths = Lengths(results);
  if (methods.empty() || lengths.empty()) return "No results yet.\n";

  constexpr int kGap = 2;
  constexpr int kMark = 6;  // "ours", "paper" and a space
  const bool any_paper = std::any_of(results.rows.begin(), results.rows.end(),
                                     [](const ResultRow& row) { return row.paper.has_value(); });
  const bool any_spread = std::any_of(results.rows.begin(), results.rows.end(),
                                      [](const ResultRow& row) { return row.seeds > 1; });
  int label_width = DisplayWidth("method");
  for (const MethodInfo& method : methods) {
    label_width = std::max(label_width, DisplayWidth(method.label));
  }
  label_width = std::min(label_width, std::max(12, options.width / 3));
  int cell_width = 0;
  for (const ResultRow& row : results.rows) {
    cell_width = std::max(cell_width, DisplayWidth(Ours(row)));
    cell_width = std::max(cell_width, static_cast<int>(std::to_string(row.n).size()));
    if (const auto difference = Difference(row)) {
      cell_width =
          std::max(cell_width,
                   DisplayWidth(fmt::format("{:.1f} ({})", *row.paper, SignedPoints(*difference))));
    }
  }
  const int mark_width = any_paper ? kMark : 0;
  const int room = options.width - label_width - 1 - mark_width;
  const int fitting = std::max(1, room / (cell_width + kGap));
  const int count = static_cast<int>(lengths.size());
  const int blocks = (count + fitting - 1) / fitting;
  const int per_block = (count + blocks - 1) / blocks;  // blocks of even width

  std::string table;
  for (int begin = 0; begin < count; begin += per_block) {
    const int end = std::min(count, begin + per_block);
    if (begin > 0) table += '\n';
    std::string header = PadRight("method", label_width + 1 + mark_width);
    for (int i = begin; i < end; ++i) {
      header += PadLeft(std::to_string(lengths[i]), cell_width + kGap);
    }
    table += Paint(header, kBold, options.color) + '\n';
    const int rule_width = label_width + 1 + mark_width + (end - begin) * (cell_width + kGap);
    for (int i = 0; i < rule_width; ++i) table += "─";
    table += '\n';

    for (const MethodInfo& method : methods) {
      std::string ours = PadRight(Ellipsize(method.label, label_width), label_width + 1);
      std::string paper(label_width + 1, ' ');
      if (any_paper) {
        ours += Paint(PadRight("ours", kMark), kDim, options.color);
        paper += Paint(PadRight("paper", kMark), kDim, options.color);
      }
      bool compared = false;
      for (int i = begin; i < end; ++i) {
        const ResultRow* row = FindRow(results, method.name, lengths[i]);
        std::string above = "–";
        std::string below;
        std::string_view color;
        if (row != nullptr) {
          above = Ours(*row);
          if (const auto difference = Difference(*row)) {
            compared = true;
            below = fmt::format("{:.1f} ({})", *row->paper, SignedPoints(*difference));
            color = ColorOf(*difference);
          }
        }
        ours += Paint(PadLeft(above, cell_width + kGap),
                      row != nullptr && IsBest(results, *row) ? kBold : "", options.color);
        paper += Paint(PadLeft(below, cell_width + kGap), color, options.color);
      }
      table += ours + '\n';
      if (!compared) continue;
      paper.erase(paper.find_last_not_of(' ') + 1);
      table += paper + '\n';
    }
  }

  std::string legend =
      any_spread ? "Accuracy in %, mean ± standard deviation over seeds." : "Accuracy in %.";
  if (any_paper) legend += "\nBelow it the paper's, and ours minus the paper's in points.";
  return table + Paint(legend, kDim, options.color) + '\n';
}

}  // namespace tsallis::lab
