#include "lab/text/translation_scores.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "lab/base/errors.h"
#include "lab/text/text_process.h"

namespace tsallis::lab {

TranslationScores ScoreTranslations(const std::vector<std::string>& hypotheses,
                                    const std::vector<std::string>& references) {
  using Json = nlohmann::json;
  if (hypotheses.size() != references.size() || hypotheses.empty()) {
    throw UsageError(
        fmt::format("translations: expected one or more, each with its reference, got {} and {} "
                    "references",
                    hypotheses.size(), references.size()));
  }
  TextProcess process({"score"});
  process.Receive();  // the library is there
  const Json asked = {{"hypotheses", hypotheses}, {"references", references}};
  process.Send(asked.dump(-1, ' ', false, Json::error_handler_t::replace));
  const Json scores = Json::parse(process.Receive());
  return {scores.at("bleu").get<double>(), scores.at("chrf").get<double>(),
          scores.at("signature").get<std::string>()};
}

}  // namespace tsallis::lab
