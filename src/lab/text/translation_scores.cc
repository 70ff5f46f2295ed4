#include "lab/text/translation_scores.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "lab/base/errors.h"
#include "lab/text/text_process.h"

namespace tsallis::lab {

TranslationScores ScoreTranslations(const std::vector<std::string>& hypotheses,
                                    const std::vector<std::string>& references) {
  using Json = nlohmann::ordered_json;
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
  Json scores = Json::parse(process.Receive());
  const std::string signature = scores.at("signature");
  scores.erase("signature");
  return {std::move(scores), signature};
}

}  // namespace tsallis::lab
