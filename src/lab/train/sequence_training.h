// Training a sequence model on a task: one method, one seed.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lab/nn/sequence_model.h"
#include "lab/nn/sequence_part.h"
#include "lab/train/trainer.h"

namespace tsallis::lab {

// The precision of the folder's run, by its config.json; empty if there is none.
std::string ComputeOf(const std::filesystem::path& folder);

// The configuration of the job's model. A run goes on in the precision that it began in, whatever
// the machine: "auto" is that of the folder's config.json where there is one.
DecoderConfig ModelOf(const TrainingJob& job);
// With the weights of the job's seed.
std::unique_ptr<SequenceModel> MakeModel(const TrainingJob& job);

// Throws UsageError unless a split has so many samples at every length: a corpus may be missing, or
// have too few long documents, and that must not cost the hours of a training. `samples`: as the
// task says for a length of training, at other lengths as many tokens.
void RequireSamples(const TaskConfig& task, Split split, const std::vector<std::int64_t>& lengths,
                    std::int64_t samples);

// Makes the job's folder and writes its config.json; throws UsageError if the folder belongs to
// other settings.
void ClaimSequenceFolder(const TrainingJob& job, const SequenceModel& model);

// The batch of training step `step`: samples [step * batch, (step + 1) * batch) of the seed's
// training split, in train.accumulate parts; of every part what is this process's share of samples,
// or all of them where processes split sequences.
std::vector<TokenBatch> TrainingParts(const Recipe& recipe, std::uint64_t seed, std::int64_t step,
                                      const Processes& processes);

class SequenceTraining : public Trainable {
 public:
  // `model` and the job's recipe are kept by reference. UsageError if there are more processes than
  // samples to share or, where they split sequences, than tokens or heads.
  SequenceTraining(const TrainingJob& job, SequenceModel& model);

  const std::vector<std::pair<std::string, at::Tensor>>& Parameters() const override {
    return model_.Parameters();
  }
  std::vector<ParameterGroup> Groups() const override { return model_.Groups(); }
  const at::Tensor& FlatParameters() const override { return model_.FlatParameters(); }
  const at::Tensor& FlatGradients() const override { return model_.FlatGradients(); }
  StepScore LossAndGradient(std::int64_t step, const GradientReady& ready) override;
  // Observes the model on validation samples at the longest length of training; not where
  // processes split sequences, since one of them may lack the memory for whole ones.
  Observation Observe() override;
  // Scores at the longest length of training and at train.best_length.
  Values Validate(const std::atomic<bool>& stop) override;

 private:
  // This process's part of the batch's sequences, which takes the batch's place.
  SequencePart TakePart(TokenBatch& batch) const;
  // The answers of a step's part, in whole.
  Answers AnswersOf(const SequenceScore& score) const;

  const Recipe& recipe_;
  std::uint64_t seed_;
  Processes processes_;
  bool splits_;  // sequences, rather than the batch
  SequenceModel& model_;
};

// Trains the job, or goes on from its last checkpoint. `model` is the job's, with the weights of
// its seed; it is left with the weights that count: the best where train.validate_every asks for
// it, else the last. Throws as Train; collective as that is.
void TrainSequences(const TrainingJob& job, SequenceModel& model,
                    const std::function<void(const JobStatus&)>& report,
                    const std::atomic<bool>& stop);

}  // namespace tsallis::lab
