#include <nlohmann/json.hpp>

#include "lab/nn/set_attention.h"

namespace tsallis::lab {

nlohmann::ordered_json ToJson(const SetAttentionConfig& config) {
  nlohmann::ordered_json json;
  json["map"] = config.map;
  if (config.map == "entmax") json["alpha"] = config.alpha;
  if (config.map == "top-k-softmax") {
    json["top_k"] = config.top_k;
    json["top_k_fraction"] = config.top_k_fraction;
  }
  if (config.sigmoid_bias) json["sigmoid_bias"] = *config.sigmoid_bias;
  if (config.theta) json["theta"] = *config.theta;
  if (config.coefficients) json["coefficients"] = *config.coefficients;
  json["length_scaling"] = {{"kind", static_cast<int>(config.length_scaling.kind)},
                            {"gamma", config.length_scaling.gamma},
                            {"delta", config.length_scaling.delta}};
  if (config.output_norm != "none") json["output_norm"] = config.output_norm;
  return json;
}

SetAttentionConfig SetAttentionFromJson(const nlohmann::ordered_json& json) {
  SetAttentionConfig config;
  config.map = json.at("map").get<std::string>();
  config.alpha = json.value("alpha", config.alpha);
  config.top_k = json.value("top_k", config.top_k);
  config.top_k_fraction = json.value("top_k_fraction", config.top_k_fraction);
  if (json.contains("sigmoid_bias")) config.sigmoid_bias = json.at("sigmoid_bias").get<double>();
  if (json.contains("theta")) config.theta = json.at("theta").get<double>();
  if (json.contains("coefficients")) {
    config.coefficients = json.at("coefficients").get<std::vector<double>>();
  }
  const auto& scaling = json.at("length_scaling");
  config.length_scaling = {static_cast<LengthScaling::Kind>(scaling.at("kind").get<int>()),
                           scaling.at("gamma").get<double>(), scaling.at("delta").get<double>()};
  config.output_norm = json.value("output_norm", config.output_norm);
  return config;
}

}  // namespace tsallis::lab
