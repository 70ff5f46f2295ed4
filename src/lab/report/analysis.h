// An analysis (`tsallis study NAME`) hands these to its page: tables, figures described as data,
// numbers beside those of theory or a paper.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace tsallis::lab {

using Cell = std::variant<std::string, std::int64_t, double>;

// The text of a cell in CSV files and in Curve::where: doubles have six digits.
std::string CellText(const Cell& cell);

// The data of figures: one CSV file.
class DataTable {
 public:
  DataTable(std::string name, std::vector<std::string> columns)
      : name_(std::move(name)), columns_(std::move(columns)) {}

  // One cell a column; std::logic_error otherwise.
  void Add(std::vector<Cell> row);

  const std::string& Name() const { return name_; }
  const std::vector<std::string>& Columns() const { return columns_; }
  const std::vector<std::vector<Cell>>& Rows() const { return rows_; }

  // The index of a column; std::logic_error if there is none.
  std::size_t Place(const std::string& column) const;
  // The number in `column` of the first row whose first cells are `keys`; std::logic_error if there
  // is none.
  double At(const std::vector<Cell>& keys, const std::string& column) const;

 private:
  std::string name_;
  std::vector<std::string> columns_;
  std::vector<std::vector<Cell>> rows_;
};

// A column and the value that it has in the rows that are meant.
using Where = std::vector<std::pair<std::string, Cell>>;

// Columns y over x of a table of the analysis.
struct Curve {
  Curve(std::string of_table, std::string of_x, std::string of_y)
      : table(std::move(of_table)), x(std::move(of_x)), y(std::move(of_y)) {}

  // A line for each value of a column; `before` stands before the values in the legend.
  Curve& By(std::string column, std::string before = {}) {
    by = std::move(column);
    return Named(std::move(before));
  }
  Curve& In(Where rows) { return where = std::move(rows), *this; }
  Curve& Named(std::string in_legend) { return label = std::move(in_legend), *this; }
  // "line" | "points" | "dashed" | "reference": what is expected, thin and grey
  Curve& Look(std::string kind) { return look = std::move(kind), *this; }

  std::string table, x, y;
  std::string by;
  Where where;
  std::string label;
  std::string look = "line";
};

// Colours over two columns.
struct Heat {
  std::string table, x, y, value;  // columns; x and y make a grid
  Where where = {};
  std::string label = {};  // of the colour bar
};

// A vertical line, in the colour of the curve of that label; without one, grey.
struct Mark {
  double x = 0.0;
  std::string curve;
};

struct Panel {
  std::string title = {};
  std::string x_label, y_label;
  std::string x_scale = "linear", y_scale = "linear";  // "linear" | "log" | "log2"
  std::vector<Curve> curves = {};
  std::optional<Heat> heat = {};
  std::vector<Mark> marks = {};
};

struct AnalysisFigure {
  std::string name;     // of its file: "probabilities"
  std::string title;    // what it shows
  std::string caption;  // how to read it, and which figure of the paper it is
  int columns = 1;      // panels side by side
  std::vector<Panel> panels = {};
};

// A number that somebody else has said, too.
struct Fact {
  std::string quantity;
  double value = 0.0;
  std::optional<double> expected = {};
  std::string source = {};  // of what is expected: "closed form", "asentmax, appendix D"
};

// The result of one analysis.
struct AnalysisResult {
  std::string finding;             // one sentence: what the reader sees
  std::vector<std::string> setup;  // how it was done
  // References to elements stay valid while more are added.
  std::deque<DataTable> tables;
  std::deque<AnalysisFigure> figures;
  std::vector<Fact> facts;

  DataTable& AddTable(std::string name, std::vector<std::string> columns) {
    return tables.emplace_back(std::move(name), std::move(columns));
  }
  AnalysisFigure& AddFigure(AnalysisFigure figure) {
    return figures.emplace_back(std::move(figure));
  }
  // std::logic_error if there is no such table.
  const DataTable& Table(const std::string& name) const;
};

// The result with the other data of its page.
struct AnalysisReport {
  std::string name;    // "entmax-temperature"
  std::string title;   // one sentence
  std::string source;  // as that of recipes: "asentmax, figure 2"
  std::string scale;   // "full", "quick"
  std::uint64_t seed = 1;
  std::string checkpoint;  // of a trained model that was given; empty: none
  std::string decoder;     // the same of a sequence model
  std::string commit;
  std::string processor;
  std::string command;
  double seconds = 0.0;
  AnalysisResult result;
};

}  // namespace tsallis::lab
