// tsallis data: makes corpora of real text.
#include <fmt/format.h>

#include <atomic>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/options.h"
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
  std::string Summary() const override { return "Make a corpus of real text for language models"; }
  std::string Example() const override {
    return "  tsallis data prepare python\n"
           "  tsallis data prepare english\n"
           "  tsallis data prepare notes --from ~/notes --extension .md\n"
           "  tsallis data prepare notes-4k --from ~/notes --extension .md --tokenizer bpe:4096\n"
           "  tsallis data prepare fineweb --from ~/fineweb10B --extension .bin --tokenizer "
           "~/gpt2/tokenizer.json";
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
        "which stay where they are, with train, val or test in their names");
    app.add_option("--extension", extension_, "Of the files that are taken from folders: .md");
    app.add_option(
        "--tokenizer", tokenizer_,
        "A tokenizer.json of Hugging Face or a .model of SentencePiece; or bpe:SIZE, "
        "which trains byte-level BPE of SIZE tokens on the training files. Default: "
        "tokens are bytes. Of shards: what made them. A recipe says task.vocabulary=SIZE");
    app.add_flag("--skip-bad", skip_bad_, "Leave out files that are not UTF-8 text");
    app.add_option("--folder", folder_, "Where to; default: data/NAME of the source tree");
    app.add_flag("--json", json_, "Print what was made as one JSON document");
    app.add_flag("--quiet", quiet_, "Print nothing");
  }

  int Run(const Invocation& invocation) override {
    lab::PrepareOptions options{
        .name = name_,
        .inputs = {from_.begin(), from_.end()},
        .extension = extension_,
        .held_out = {},
        .tokenizer = tokenizer_,
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
      const nlohmann::ordered_json document = {{"folder", options.folder.string()},
                                               {"made", made.made},
                                               {"files", made.files},
                                               {"skipped", made.skipped},
                                               {"train", made.tokens[0]},
                                               {"validation", made.tokens[1]},
                                               {"test", made.tokens[2]}};
      fmt::print("{}\n", document.dump(2));
    } else if (shows) {
      fmt::print("{}{}: {} files, {} left out; tokens: {} train, {} validation, {} test\n",
                 options.folder.string(), made.made ? "" : " (was there)", made.files, made.skipped,
                 made.tokens[0], made.tokens[1], made.tokens[2]);
    }
    return 0;
  }

 private:
  void UseSource(lab::PrepareOptions& options, bool show, const std::atomic<bool>& stop) const {
    std::vector<std::string> names;
    for (const lab::CorpusSource& source : lab::CorpusSources()) {
      names.push_back(source.name);
      if (source.name != name_) continue;
      try {
        options.inputs = {lab::SourceFolder(source, show)};
      } catch (const std::runtime_error&) {
        if (stop) throw lab::Interrupted("stopped; nothing was made");
        throw;
      }
      if (extension_.empty()) options.extension = source.extension;
      options.held_out = source.held_out;
      options.skip_bad = true;
      return;
    }
    throw lab::UsageError("unknown corpus \"" + name_ + "\"" + lab::Suggestion(name_, names) +
                          "; one of your own needs --from");
  }

  std::string action_, name_, extension_, tokenizer_, folder_;
  std::vector<std::string> from_;
  bool skip_bad_ = false, json_ = false, quiet_ = false;
};

}  // namespace

std::unique_ptr<Command> MakeData() { return std::make_unique<DataCommand>(); }

}  // namespace tsallis::cli
