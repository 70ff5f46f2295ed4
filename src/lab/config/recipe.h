// A recipe: the single place where a study is described. Plain data, read from experiments/*.toml.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lab/errors.h"

namespace tsallis::lab {

// SPEC L: what multiplies the query of a row that sees n keys.
struct LengthScaling {
  enum class Kind : std::uint8_t { kNone, kSSMax, kScalar };
  Kind kind =
      Kind::kNone;  // "none" | "ssmax": b ln n | "scalar": delta + beta (ln n)^gamma, beta learned
  double gamma = 1.0;  // scalar: the exponent, fixed
  double delta = 1.0;  // scalar: the additive term, fixed
};

struct MethodConfig {
  std::string name;             // identifies it everywhere: "asentmax-3"
  std::string label;            // for people; the name unless given
  std::string map = "softmax";  // "softmax" | "entmax" | "adaptive-temperature"
  double alpha = 1.5;           // entmax
  // Divides q.k (Velickovic et al. 2024, eq. 12); unset: sqrt(width), as in the listing of their
  // appendix A.3.
  std::optional<double> theta;
  LengthScaling length_scaling;
  // Evaluates the weights that this other method trained instead of training its own.
  std::optional<std::string> weights_of;
  std::vector<double> paper;  // accuracy in %, at the first lengths of eval_lengths
};

struct TaskConfig {
  std::string name;                   // "max-retrieval"
  std::int64_t train_length_min = 5;  // train_length = [min, max], uniform, one length a batch
  std::int64_t train_length_max = 16;
  std::int64_t classes = 10;
  std::vector<std::int64_t> eval_lengths;
  // Sets evaluated at length n: eval_items / n, within [eval_sets_min, eval_sets_max].
  std::int64_t eval_items = 1 << 22;
  std::int64_t eval_sets_min = 256;
  std::int64_t eval_sets_max = 4096;
};

struct ModelConfig {
  std::string name;  // "set-attention"
  std::int64_t width = 128;
};

struct TrainConfig {
  std::string optimizer = "adam";
  double lr = 1e-3;
  double l2 =
      1e-3;  // added to the gradient of every parameter: l2 * w, the gradient of (l2/2) ||w||^2
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  std::int64_t batch = 128;
  std::int64_t log_every = 500;          // steps between lines of metrics.jsonl
  std::int64_t checkpoint_every = 5000;  // steps between checkpoints
};

struct ScaleConfig {
  std::int64_t steps = 0;
  int seeds = 1;
  std::vector<std::string> methods;                       // empty: all
  std::optional<std::vector<std::int64_t>> eval_lengths;  // overrides the task's
  std::optional<std::int64_t> eval_items;                 // overrides the task's
};

struct Recipe {
  std::filesystem::path path;
  std::string name;
  std::string title;
  std::string source;
  TaskConfig task;
  ModelConfig model;
  TrainConfig train;
  std::vector<MethodConfig> methods;
  std::map<std::string, ScaleConfig> scales;

  const MethodConfig& Method(const std::string& method) const;  // UsageError with a suggestion
  const ScaleConfig& Scale(const std::string& scale) const;     // UsageError with a suggestion
};

// Reads and checks a recipe. Unknown keys, wrong types and bad values are UsageErrors that name
// file, line, key, what was expected, and the nearest known key.
Recipe LoadRecipe(const std::filesystem::path& path);

// Recipes in <source>/experiments, by name; each is the stem of its file.
std::vector<std::filesystem::path> ListRecipes();

// The recipe of that name (experiments/<name>.toml), or the file if `name` is a path to one.
Recipe FindRecipe(const std::string& name);

}  // namespace tsallis::lab
