// Models and training on a device that is not the CPU, a pretended one: what mixes devices throws,
// as it would with CUDA.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lab/base/device.h"
#include "lab/eval/evaluate_sequences.h"
#include "lab/eval/observe_packed.h"
#include "lab/generate/generate.h"
#include "lab/generate/question.h"
#include "lab/nn/encoder_decoder.h"
#include "lab/nn/models.h"
#include "lab/tasks/sequence_batch.h"
#include "lab/tasks/sequence_tasks.h"
#include "lab/testing/decoder_variants.h"
#include "lab/testing/lab_test_support.h"
#include "lab/testing/pretend_device.h"
#include "lab/train/experiment.h"
#include "lab/train/load_model.h"

namespace tsallis::lab {
namespace {

using at::Tensor;

TEST(PretendDevice, ComputesAsTheCpuAndDoesNotMixWithIt) {
  const at::Device device = DeviceNamed("pretend");
  const Tensor x = at::randn({5, 8}), w = at::randn({4, 8}).t().contiguous();
  const Tensor a = x.to(device).requires_grad_(true), b = w.to(device);
  EXPECT_TRUE(a.is_privateuseone());
  const Tensor y = at::rms_norm(at::matmul(a, b), {4}, {}, 1e-6);
  y.softmax(-1).square().sum().backward();
  const Tensor host = x.clone().requires_grad_(true);
  at::rms_norm(at::matmul(host, w), {4}, {}, 1e-6).softmax(-1).square().sum().backward();
  EXPECT_TRUE(at::allclose(a.grad().cpu(), host.grad()));
  EXPECT_THROW(at::matmul(a, w), c10::Error);
  EXPECT_THROW(b + w, c10::Error);
  EXPECT_TRUE(at::allclose((b * at::scalar_tensor(2.0)).cpu(), w * 2.0));
}

TEST(PretendDevice, IsNoDeviceOfUsers) {
  EXPECT_EQ(CheckDeviceName("cpu"), "");
  EXPECT_EQ(CheckDeviceName("cuda"), "");
  EXPECT_EQ(CheckDeviceName("cuda:1"), "");
  for (const char* name :
       {"", "gpu", "cuda:", "cuda:-1", "cuda:1x", "cuda:1000", "privateuseone"}) {
    EXPECT_EQ(CheckDeviceName(name), "\"cpu\", \"cuda\" or \"cuda:N\"") << name;
  }
  ExpectContains(UsageErrorOf([] { DeviceNamed("gpu"); }), "got \"gpu\"");
}

// Where this torch has CUDA a device of that number is missing still.
TEST(PretendDevice, ATorchWithoutCudaSaysWhatToInstall) {
  const std::string error = UsageErrorOf([] { DeviceNamed("cuda:126"); });
  ExpectContains(error, "device: ");
  ExpectContains(error, "CUDA");
}

constexpr std::int64_t kSteps = 12;

Recipe RecipeOn(const std::string& device, const std::string& model, const std::string& optimizer) {
  Recipe recipe = SmallSequences();
  recipe.model.name = model;
  if (model == "encoder-decoder") recipe.model.decoder.attention.positions.kind = "sinusoidal";
  recipe.train.device = device;
  recipe.train.optimizer = optimizer;
  return recipe;
}

// Fills the folder by training there; `stopped`: only its first step.
void TrainIn(const std::filesystem::path& folder, const Recipe& recipe, std::size_t method,
             bool stopped) {
  const TrainingJob job{&recipe, &recipe.methods[method], 1, kSteps, folder};
  const std::unique_ptr<Experiment> experiment = MakeExperiment(job);
  EXPECT_EQ(experiment->FlatParameters().device(), DeviceNamed(recipe.train.device));
  const std::atomic<bool> stop{stopped};
  RunFolder(job.folder).Claim(experiment->Settings());
  const auto train = [&] { Train(*experiment, job, Silent, stop); };
  if (stopped) {
    EXPECT_THROW(train(), Interrupted);
  } else {
    train();
  }
}

using Model = std::pair<const char*, const char*>;  // and its optimiser

class TrainsOnADevice : public testing::TestWithParam<Model> {
 private:
  OneThread one_thread_;
};

TEST_P(TrainsOnADevice, AsOnTheCpuAndGoesOnOnAnother) {
  const auto& [model, optimizer] = GetParam();
  const TemporaryFolder folder;
  const Recipe host = RecipeOn("cpu", model, optimizer);
  const Recipe device = RecipeOn("pretend", model, optimizer);
  for (const std::size_t method : {std::size_t{0}, std::size_t{1}}) {  // softmax, entmax
    const auto in = [&](const char* name) {
      return folder.Path() / (std::string(name) + std::to_string(method));
    };
    TrainIn(in("host"), host, method, false);
    TrainIn(in("device"), device, method, false);
    TrainIn(in("both"), device, method, true);
    TrainIn(in("both"), host, method, false);
    TrainIn(in("back"), host, method, true);
    TrainIn(in("back"), device, method, false);
    const auto evaluate = [&](const char* name, const char* on) {
      const LoadedSequenceModel loaded = LoadSequenceModel(in(name), DeviceNamed(on));
      return loaded.model->Evaluate(
          DrawBatch(*loaded.task, kEvaluationSeed, Split::kTest, 0, 20, 3));
    };
    const SequenceScore expected = evaluate("host", "cpu");
    for (const char* name : {"device", "both", "back"}) {
      SCOPED_TRACE(name);
      const TensorFile a = ReadTensors(in("host") / "model.safetensors");
      const TensorFile b = ReadTensors(in(name) / "model.safetensors");
      ASSERT_EQ(a.tensors.size(), b.tensors.size());
      for (const auto& [parameter, value] : a.tensors) {
        // Adam divides by the size of a gradient, and so enlarges what rounding does to small ones.
        EXPECT_TRUE(at::allclose(b.At(parameter), value, 1e-2, 2e-3)) << parameter;
      }
      for (const char* on : {"cpu", "pretend"}) {
        const SequenceScore score = evaluate(name, on);
        EXPECT_EQ(score.scored, expected.scored);
        EXPECT_NEAR(score.loss, expected.loss, 0.01 * expected.loss) << on;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(PretendDevice, TrainsOnADevice,
                         testing::Values(Model{"decoder", "adamw"}, Model{"decoder", "muon"},
                                         Model{"encoder-decoder", "adamw"}),
                         [](const auto& model) {
                           const bool muon = std::string(model.param.second) == "muon";
                           return std::string(model.param.first[0] == 'd' ? "Decoder"
                                                                          : "EncoderDecoder") +
                                  (muon ? "Muon" : "Adam");
                         });

// Both models draw, take the likeliest tokens, and search with beams, as `translate` does.
void ExpectEqualTexts(SequenceModel& host, SequenceModel& away, const SequenceTask& task) {
  Shake(host);
  away.FlatParameters().copy_(host.FlatParameters());
  MarkChanged(away.FlatParameters());
  std::vector<Prompt> prompts;
  for (std::int64_t i = 0; i < 5; ++i) {
    prompts.push_back(QuestionOf(task.Draw(kEvaluationSeed, Split::kTest, i, 6)).prompt);
  }
  GenerateOptions options;
  options.steps = 12;
  const std::vector<std::pair<double, std::int64_t>> searches = {{0.0, 1}, {0.0, 3}, {1.0, 1}};
  for (const auto& [temperature, beams] : searches) {
    options.sampler.temperature = temperature;
    options.beams = beams;
    const std::vector<Written> expected = Generate(host, prompts, options);
    const std::vector<Written> found = Generate(away, prompts, options);
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      EXPECT_EQ(found[i].tokens, expected[i].tokens) << temperature << " " << beams;
      EXPECT_NEAR(found[i].log_likelihood, expected[i].log_likelihood, 1e-3);
    }
  }
}

TEST(PretendDevice, ADecoderWritesAsOnTheCpu) {
  const OneThread one_thread;
  const TaskPointer task = MakeSequenceTask("copy", {"symbols=8"});
  for (const char* map : {"softmax", "entmax"}) {
    DecoderConfig config = Asentmax();
    config.vocabulary = task->Vocabulary();
    config.attention.map = map;
    Decoder host(config, 3), away(config, 3, DeviceNamed("pretend"));
    ExpectEqualTexts(host, away, *task);
  }
}

TEST(PretendDevice, AnEncoderDecoderWritesAsOnTheCpu) {
  const TaskPointer task = MakeSequenceTask("copy", {"symbols=8"});
  DecoderConfig config = Tiny();
  config.vocabulary = task->Vocabulary();
  config.attention.positions.kind = "sinusoidal";
  config.attention.map = "entmax";
  config.attention.learn_alpha = "sigmoid";
  EncoderDecoder host(config, 3), away(config, 3, DeviceNamed("pretend"));
  ExpectEqualTexts(host, away, *task);

  // The heads of the context, which are observed on the CPU.
  const TokenBatch sample = DrawBatch(*task, kEvaluationSeed, Split::kTest, 0, 1, 6);
  const std::vector<ContextWeights> expected = ContextOf(host, sample);
  const std::vector<ContextWeights> found = ContextOf(away, sample);
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_TRUE(at::allclose(found[i].weights, expected[i].weights, 1e-3, 1e-4));
    EXPECT_NEAR(found[i].alpha.value(), expected[i].alpha.value(), 1e-6);
  }
}

}  // namespace
}  // namespace tsallis::lab
