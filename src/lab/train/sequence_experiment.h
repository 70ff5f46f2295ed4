// A sequence model on a task: one method, one seed.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lab/nn/sequence_model.h"
#include "lab/nn/sequence_part.h"
#include "lab/train/experiment.h"

namespace tsallis::lab {

class SequenceExperiment : public Experiment {
 public:
  // UsageError if there are more processes than samples to share or, where they split sequences,
  // than tokens or heads.
  explicit SequenceExperiment(const TrainingJob& job);

  SequenceModel& Model() { return *model_; }

  const std::vector<std::pair<std::string, at::Tensor>>& Parameters() const override {
    return model_->Parameters();
  }
  std::vector<ParameterGroup> Groups() const override { return model_->Groups(); }
  const at::Tensor& FlatParameters() const override { return model_->FlatParameters(); }
  const at::Tensor& FlatGradients() const override { return model_->FlatGradients(); }
  StepScore LossAndGradient(std::int64_t step, const GradientReady& ready) override;
  // Observes the model on validation samples at the longest length of training; not where
  // processes split sequences, since one of them may lack the memory for whole ones.
  Observation Observe() override;
  // Scores at the longest length of training and at train.best_length.
  Values Validate(const std::atomic<bool>& stop) override;

  nlohmann::ordered_json Settings() const override;
  std::string Note() const override { return model_->Note(); }
  void StartFrom(const std::filesystem::path& path) override;
  void RequireSamples() const override;
  void RequireTestSamples(const TaskConfig& task) const override;
  void Attend(const MethodConfig& method) override;
  Score Test(std::int64_t n, std::int64_t samples, bool draws,
             const std::atomic<bool>& stop) override;
  void ObserveHeads(const TaskConfig& task, const std::vector<std::int64_t>& map_lengths,
                    const std::filesystem::path& path, const std::atomic<bool>& stop) override;

 private:
  // This process's part of the batch's sequences, which takes the batch's place.
  SequencePart TakePart(TokenBatch& batch) const;
  // The hits and the number of the answers of a step's part, in whole.
  std::pair<std::int64_t, std::int64_t> AnswersOf(const SequenceScore& score) const;

  TrainingJob job_;
  const Recipe& recipe_;
  const SequenceTask& task_;
  bool splits_;  // sequences, rather than the batch
  std::unique_ptr<SequenceModel> model_;
  std::unique_ptr<SequenceModel> borrower_;  // of model_'s weights, where another method reads them
};

}  // namespace tsallis::lab
