// A recipe: the single place where a study is described. Plain data, read from experiments/*.toml.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lab/base/errors.h"
#include "lab/base/toml_reader.h"
#include "lab/config/optimizers.h"
#include "lab/nn/decoder_config.h"
#include "lab/nn/models.h"
#include "lab/nn/set_attention.h"
#include "lab/tasks/max_retrieval.h"
#include "lab/tasks/sequence.h"

namespace tsallis::lab {

struct TrainConfig : OptimizerConfig {
  // The device on which a model of sequences is trained and evaluated: "cpu", "cuda", "cuda:N"
  // (lab/base/device.h). Not saved with a run: it may be resumed on another device.
  std::string device = "cpu";
  // What several processes share: "batch", each takes some of its samples; "sequence", each takes
  // some tokens of every sequence, and some heads of attention. Not saved with a run either.
  std::string split = "batch";
  // `reproduce` trains at each of these instead, and chooses for every method on validation data.
  std::vector<double> lr_grid;
  double clip = 0.0;  // largest global norm of the gradient; 0: any
  // "constant"; "cosine": down to 0 at the end; "linear": constant, then down to 0 in a line.
  std::string schedule = "constant";
  double cooldown = 1.0;    // linear: the last share of the updates, in which lr falls
  std::int64_t warmup = 0;  // updates until lr is reached
  // The source of the first weights instead of a seed: "STUDY/SCALE", whose run of the same method
  // and seed is in the same folder of runs. Sequence models.
  std::string start;
  std::int64_t batch = 128;
  std::int64_t accumulate = 1;           // parts that a batch is worked on in, to need less memory
  std::int64_t log_every = 500;          // steps between lines of metrics.jsonl
  std::int64_t checkpoint_every = 5000;  // steps between checkpoints
  // The best checkpoint is that of the highest accuracy on validation samples of length
  // best_length, read every validate_every steps and at the end. 0: the last weights count.
  // Checkpoints with less than best_floor % at the longest length of training count only while none
  // has reached it, and by their accuracy there: what is not learned yet cannot generalise, however
  // it scores.
  std::int64_t validate_every = 0;
  std::int64_t best_length = 0;
  double best_floor = 0.0;
  std::int64_t validate_samples = 200;
};

// Methods of the set model describe its attention with keys of their own; methods of decoders do it
// in `attention`.
struct MethodConfig : SetAttentionConfig {
  std::string name;   // identifies it everywhere: "asentmax-3"
  std::string label;  // for people; the name unless given
  // Tells methods apart that attend alike: figures give them one colour and lines of their own.
  // Decoders: the kind of their positions unless given.
  std::string variant;
  // Decoders: the differences from the attention that [model] describes. For all layers and heads
  // they lie below the model's overrides, for some of them above.
  std::optional<AttentionOverride> attention;
  // Evaluates the weights that this other method trained instead of training its own.
  std::optional<std::string> weights_of;
  // The whole training of this method, where it differs from the recipe's [train]: the keys of the
  // method's own `train` table replace the recipe's.
  std::optional<TrainConfig> train;
  // With `train`: how many steps, where that is not the scale's number.
  std::optional<std::int64_t> steps;
  std::vector<double> paper;  // the task's metric, at the first lengths of eval_lengths
};

// Lengths of training and classes: the sequence tasks have the lengths alone.
struct TaskConfig : MaxRetrievalConfig {
  std::string name;  // of the catalogue
  std::vector<std::int64_t> eval_lengths;
  // Sets evaluated at length n: eval_items / n, within [eval_sets_min, eval_sets_max].
  std::int64_t eval_items = 1 << 22;
  std::int64_t eval_sets_min = 256;
  std::int64_t eval_sets_max = 4096;

  // What draws samples; Sequences(): the same where these are sequences, else null.
  std::shared_ptr<const Task> generator;
  const SequenceTask* Sequences() const {
    return dynamic_cast<const SequenceTask*>(generator.get());
  }
  // The task's own settings, defaults included, as JSON texts.
  std::vector<std::pair<std::string, std::string>> settings;
  // At every length; tasks that are scored by their loss: at the longest length of training, and as
  // many at others as have as many tokens.
  std::int64_t eval_samples = 1000;
  // The others: fewer samples, one at least, where length times samples would exceed this.
  std::optional<std::int64_t> eval_tokens;
  // Tasks whose answers are right or wrong as a whole: at most so many behind two lengths in a row
  // at which no answer was right.
  std::optional<std::int64_t> eval_samples_lost;

  // Samples at length n where `asked` are wanted, as eval_samples and eval_tokens say.
  std::int64_t Samples(std::int64_t asked, std::int64_t n) const {
    const std::int64_t most = generator->GetScoring() == Scoring::kLoss
                                  ? asked * train_length_max / n
                              : eval_tokens ? std::min(asked, *eval_tokens / n)
                                            : asked;
    return std::max<std::int64_t>(1, most);
  }
};

struct ModelConfig {
  std::string name;          // "set-attention", "decoder", "encoder-decoder"
  std::int64_t width = 128;  // set-attention
  DecoderConfig decoder;     // the others; its vocabulary is the task's
};

class ExperimentKind;

inline constexpr int kMostSeeds = 100000;  // of a scale

// The keys of a scale that choose learning rates.
inline constexpr const char* kGridKeys[] = {"grid_steps", "grid_seeds", "grid_seed", "grid_widen"};

struct ScaleConfig {
  // Every key that this scale does not give is this other scale's, but for what chooses learning
  // rates: the four keys of the grid, and train.lr_grid in `set`.
  std::string like;
  std::int64_t steps = 0;
  int seeds = 1;
  // With train.lr_grid: the runs that learning rates are chosen by; unset: the study's own.
  std::optional<std::int64_t> grid_steps;
  std::optional<int> grid_seeds;
  std::optional<std::int64_t> grid_seed;  // the first of theirs
  // How many more rates may be tried beyond either end of the grid, each as far from the last as
  // that is from the one before, while the last one is the best of a method.
  std::int64_t grid_widen = 0;
  std::vector<std::string> methods;                       // empty: all
  std::optional<std::vector<std::int64_t>> eval_lengths;  // overrides the task's
  std::optional<std::int64_t> eval_items;                 // overrides the task's
  bool compare = true;  // whether the papers' figures belong beside this scale's
  // [scale.NAME.set] changes any other key while this scale runs; see AtScale.
};

struct Recipe {
  std::filesystem::path path;
  std::string text;  // the file's
  std::string name;
  std::string title;
  std::string source;
  std::string baseline;  // the method that a report holds the others against; empty: none
  std::int64_t finding_length = 0;  // what a page's first sentence speaks of; 0: see Finding()
  std::string figure = "accuracy";  // what a report is of and begins with: that, or "flow"
  // The methods that a report's first figure shows of a scale with more than fit into it; empty:
  // the first ones.
  std::vector<std::string> headline;
  TaskConfig task;
  ModelConfig model;
  TrainConfig train;
  std::vector<MethodConfig> methods;
  std::map<std::string, ScaleConfig> scales;

  const ExperimentKind& Kind() const;  // the model's

  const MethodConfig& Method(const std::string& method) const;  // UsageError with a suggestion
  const ScaleConfig& Scale(const std::string& scale) const;     // UsageError with a suggestion

  // The decoder of a method: [model] with the method's attention.
  DecoderConfig Decoder(const MethodConfig& method) const;

  // The recipe that a method is trained by: with the method's own `train`, if it has one.
  Recipe TrainedBy(const MethodConfig& method) const;
  // Steps of a method's training at a scale.
  std::int64_t Steps(const MethodConfig& method, const std::string& scale) const;
};

// Reads the keys of a recipe and checks each by itself.
void Describe(TableReader& table, Recipe& recipe);

// Reads and checks a recipe. Unknown keys, wrong types and bad values are UsageErrors that name
// file, line, key, what was expected, and the nearest known key.
Recipe LoadRecipe(const std::filesystem::path& path);

// The recipe as [scale.NAME.set] and settings ("train.lr=1e-4") change it. A setting of `train` or
// of the steps also goes before a method's own, one of `model.attention` before that of the method
// `trained`: in a study of all methods their own attention is what they differ in. UsageError as
// above.
Recipe AtScale(const Recipe& recipe, const std::string& scale,
               const std::vector<std::string>& settings = {}, const std::string& trained = "");

// Recipes in <source>/experiments, by name; each is the stem of its file.
std::vector<std::filesystem::path> ListRecipes();

// The recipe of that name (experiments/<name>.toml), or the file if `name` is a path to one.
Recipe FindRecipe(const std::string& name);

}  // namespace tsallis::lab
