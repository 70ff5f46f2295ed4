// tsallis data: makes corpora of real text.
#include <fmt/format.h>

#include <atomic>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/options.h"
#include "cli/terminal.h"
#include "lab/base/catalogue.h"
#include "lab/base/errors.h"
#include "lab/base/suggest.h"
#include "lab/text/corpus.h"
#include "lab/text/prepare.h"
#include "lab/text/sources.h"

namespace tsallis::cli {
namespace {

class DataCommand : public Command {
 public:
  std::string Name() const override { return "data"; }
  std::string Summary() const override {
    return "Make a corpus of real text, for language models or for translation";
  }
  std::string Example() const override {
    return "  tsallis data prepare python\n"
           "  tsallis data prepare english\n"
           "  tsallis data prepare german\n"
           "  tsallis data prepare notes --from ~/notes --extension .md\n"
           "  tsallis data prepare notes-4k --from ~/notes --extension .md --tokenizer bpe:4096\n"
           "  tsallis data prepare fineweb --from ~/fineweb10B --extension .bin --tokenizer "
           "~/gpt2/tokenizer.json\n"
           "  tsallis data prepare iwslt --from ~/iwslt17 --pairs de,en --tokenizer bpe:32000";
  }

  void Declare(CLI::App& app) override {
    app.add_option("ACTION", action_, "prepare")->required()->check(OneOf({"prepare"}));
    std::string sources;
    for (const lab::CorpusSource& source : lab::CorpusSources()) {
      sources +=
          fmt::format("{}{} ({})", sources.empty() ? "" : ", ", source.name, source.description);
    }
    app.add_option(
           "NAME", name_,
           "The corpus, as a recipe's task.corpus names it; known without --from: " + sources)
        ->required();
    app.add_option(
        "--from", from_,
        "Text files, and folders whose files are taken; or shards of tokens (.bin of llm.c), "
        "which stay where they are, with train, val (or dev) or test in their names");
    app.add_option(
        "--pairs", pairs_,
        "Parallel text, as in en,de: of every NAME.en and NAME.de, a sentence on each line, the "
        "first is the source and the second its translation. train, val (or dev) or test in NAME "
        "says the part; without, its path does");
    app.add_option("--extension", extension_,
                   "Take only files with this extension from folders, as in .md");
    app.add_option("--tokenizer", tokenizer_,
                   "A tokenizer.json of Hugging Face or a .model of SentencePiece; or bpe:SIZE, "
                   "which trains byte-level BPE of SIZE tokens on the training files. Default: "
                   "tokens are bytes, for german bpe:4096. With shards: the tokenizer that made "
                   "them. A recipe says task.vocabulary=SIZE");
    app.add_flag("--skip-bad", skip_bad_, "Leave out files that are not UTF-8 text");
    app.add_option("--folder", folder_,
                   "Folder of the corpus; default: data/NAME of the source tree");
    app.add_flag("--json", json_, "Print what was made as one JSON document");
    app.add_flag("--quiet", quiet_, "Print nothing");
  }

  int Run(const Invocation& invocation) override {
    if (!extension_.empty() && extension_[0] != '.') {
      throw lab::UsageError("--extension: expected one with its dot, as in .md, got " + extension_);
    }
    lab::PrepareOptions options{
        .name = name_,
        .inputs = {from_.begin(), from_.end()},
        .extension = extension_,
        .held_out = {},
        .tokenizer = tokenizer_,
        .pairs = SidesAskedFor(),
        .skip_bad = skip_bad_,
        .folder = folder_.empty() ? lab::CorpusFolder(name_).string() : folder_};
    const bool shows = !quiet_ && !json_;
    if (from_.empty()) UseSource(options, shows, *invocation.stop);
    std::int64_t shown = -1;
    const lab::Prepared made =
        lab::PrepareCorpus(options, [&](std::int64_t done, std::int64_t all) {
          const std::int64_t percent = all > 0 ? 100 * done / all : 100;
          if (shows && percent / 10 > shown) {
            shown = percent / 10;
            fmt::print("  {} % of {:.1f} MB\n", percent, static_cast<double>(all) / 1e6);
            std::fflush(stdout);
          }
          return !*invocation.stop;
        });
    if (json_) {
      nlohmann::ordered_json document = {{"folder", options.folder.string()},
                                         {"made", made.made},
                                         {"files", made.files},
                                         {"skipped", made.skipped},
                                         {"train", made.tokens[0]},
                                         {"validation", made.tokens[1]},
                                         {"test", made.tokens[2]}};
      if (options.pairs) document["pairs"] = made.pairs;
      PrintJson(document);
    } else if (shows) {
      fmt::print("{}{}: {} files, {} left out; tokens: {} train, {} validation, {} test\n",
                 options.folder.string(), made.made ? "" : " (was there)", made.files, made.skipped,
                 made.tokens[0], made.tokens[1], made.tokens[2]);
      if (options.pairs) {
        fmt::print("pairs of {} and {}: {} train, {} validation, {} test\n", options.pairs->source,
                   options.pairs->target, made.pairs[0], made.pairs[1], made.pairs[2]);
      }
    }
    return 0;
  }

 private:
  // The two endings that --pairs gives. UsageError if it gives anything else, or stands beside an
  // option that is not for parallel text.
  std::optional<lab::Sides> SidesAskedFor() const {
    if (pairs_.empty()) return {};
    const std::size_t comma = pairs_.find(',');
    lab::Sides sides{pairs_.substr(0, comma),
                     comma == std::string::npos ? "" : pairs_.substr(comma + 1)};
    const auto is_ending = [](const std::string& side) {
      return !side.empty() && side.find_first_of(",/. ") == std::string::npos;
    };
    if (!is_ending(sides.source) || !is_ending(sides.target) || sides.source == sides.target) {
      throw lab::UsageError("--pairs: expected two endings of files, as in en,de, got " + pairs_);
    }
    if (!extension_.empty()) {
      throw lab::UsageError("--extension: with --pairs the endings are " + pairs_ + ", got " +
                            extension_);
    }
    if (skip_bad_) {
      throw lab::UsageError("--skip-bad: with --pairs every file has its translation; correct it");
    }
    return sides;
  }

  void UseSource(lab::PrepareOptions& options, bool show, const std::atomic<bool>& stop) const {
    std::vector<std::string> names;
    for (const lab::CorpusSource& source : lab::CorpusSources()) {
      names.push_back(source.name);
      if (source.name != name_) continue;
      if (options.pairs && !source.pairs) {
        throw lab::UsageError("--pairs: " + name_ + " is no parallel text");
      }
      if (source.pairs && (!extension_.empty() || skip_bad_)) {
        throw lab::UsageError(fmt::format("--{}: {} is parallel text, all of which is taken",
                                          extension_.empty() ? "skip-bad" : "extension", name_));
      }
      try {
        options.inputs = {lab::SourceFolder(source, show)};
      } catch (const std::runtime_error&) {
        if (stop) throw lab::Interrupted("stopped; nothing was made");
        throw;
      }
      if (extension_.empty()) options.extension = source.extension;
      options.held_out = source.held_out;
      if (options.tokenizer.empty()) options.tokenizer = source.tokenizer;
      if (!options.pairs) options.pairs = source.pairs;
      options.skip_bad = !options.pairs;
      return;
    }
    throw lab::UsageError("unknown corpus \"" + name_ + "\"" + lab::Suggestion(name_, names) +
                          "; one of your own needs --from");
  }

  std::string action_, name_, extension_, pairs_, tokenizer_, folder_;
  std::vector<std::string> from_;
  bool skip_bad_ = false, json_ = false, quiet_ = false;
};

}  // namespace

std::unique_ptr<Command> MakeData() { return std::make_unique<DataCommand>(); }

}  // namespace tsallis::cli
