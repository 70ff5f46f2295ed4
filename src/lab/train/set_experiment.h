// The set model on max retrieval: one method, one seed, one core.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "lab/nn/set_attention.h"
#include "lab/train/experiment.h"

namespace tsallis::lab {

class SetExperiment : public Experiment {
 public:
  explicit SetExperiment(const TrainingJob& job);

  SetAttention& Model() { return model_; }

  const std::vector<std::pair<std::string, at::Tensor>>& Parameters() const override {
    return model_.Parameters();
  }
  const at::Tensor& FlatParameters() const override { return model_.FlatParameters(); }
  const at::Tensor& FlatGradients() const override { return model_.FlatGradients(); }
  StepScore LossAndGradient(std::int64_t step, const GradientReady& ready) override;
  // Proposition 3.1 of Velickovic et al. 2024 through training (their figure 9).
  Observation Observe() override;
  // Every process reads all of it: it takes little beside the training.
  Values Validate(const std::atomic<bool>& stop) override;

  nlohmann::ordered_json Settings() const override;
  // Its recipes have no train.start (TakesWeights()).
  void StartFrom(const std::filesystem::path& path) override;
  // Sets are drawn: there are always enough.
  void RequireSamples() const override {}
  void RequireTestSamples(const TaskConfig&) const override {}
  void Attend(const MethodConfig& method) override { model_.Attend(method); }
  Score Test(std::int64_t n, std::int64_t samples, bool draws,
             const std::atomic<bool>& stop) override;
  // Its one head is part of the score.
  void ObserveHeads(const TaskConfig&, const std::vector<std::int64_t>&,
                    const std::filesystem::path&, const std::atomic<bool>&) override {}

 private:
  TrainingJob job_;
  const Recipe& recipe_;
  MaxRetrieval task_;
  SetAttention model_;
};

}  // namespace tsallis::lab
