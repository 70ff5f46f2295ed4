// Several processes, as threads of this one: sums, what is told about who fails, and training that
// gives what one process gives.
#include "lab/train/processes.h"

#include <ATen/ATen.h>
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <csignal>
#include <exception>
#include <functional>
#include <map>
#include <thread>
#include <vector>

#include "lab/base/device.h"
#include "lab/base/errors.h"
#include "lab/nn/decoder.h"
#include "lab/nn/encoder_decoder.h"
#include "lab/nn/sequence_model.h"
#include "lab/nn/sequence_part.h"
#include "lab/tasks/sequence_tasks.h"
#include "lab/testing/decoder_variants.h"
#include "lab/testing/lab_test_support.h"
#include "lab/train/gradient_sum.h"
#include "lab/train/sequence_experiment.h"
#include "tsallis/error.h"

namespace tsallis::lab {
namespace {

std::uint16_t FreePort() {
  const int handle = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  EXPECT_EQ(bind(handle, generic, size), 0);
  EXPECT_EQ(getsockname(handle, generic, &size), 0);
  close(handle);
  return ntohs(address.sin_port);
}

// Runs `body` in `size` connected processes and returns what each threw, or "".
std::vector<std::string> Together(int size, const std::function<void(const Processes&)>& body) {
  std::vector<std::string> errors(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  const std::uint16_t port = FreePort();
  std::atomic<int> running{size};
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      Processes processes;  // the first one's keeps the store and goes last
      try {
        Launch launch;
        launch.rank = rank;
        launch.size = size;
        launch.host = "127.0.0.1";
        launch.port = port;
        launch.timeout = std::chrono::seconds(60);
        processes = Processes::Connect(launch, never);
        processes.Together([&] { body(processes); });
      } catch (const std::exception& error) {
        errors[static_cast<std::size_t>(rank)] = error.what();
      }
      if (rank != 0) processes = {};
      --running;
      while (rank == 0 && running > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

void ExpectNoErrors(const std::vector<std::string>& errors) {
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

std::string LaunchError(const std::map<std::string, std::string>& variables) {
  return UsageErrorOf([&] {
    ReadLaunch([&](const char* name) {
      const auto found = variables.find(name);
      return found == variables.end() ? nullptr : found->second.c_str();
    });
  });
}

TEST(Launch, ReadsWhatTorchrunSets) {
  std::map<std::string, std::string> set = {{"MASTER_ADDR", "there"}, {"MASTER_PORT", "29500"}};
  const auto variable = [&](const char* name) {
    const auto found = set.find(name);
    return found == set.end() ? nullptr : found->second.c_str();
  };
  EXPECT_EQ(ReadLaunch(variable).size, 1);  // the address alone is none of ours
  set.insert({{"RANK", "2"}, {"WORLD_SIZE", "3"}, {"TORCHELASTIC_RESTART_COUNT", "4"}});
  Launch launch = ReadLaunch(variable);
  EXPECT_EQ(launch.rank, 2);
  EXPECT_EQ(launch.size, 3);
  EXPECT_EQ(launch.host, "there");
  EXPECT_EQ(launch.port, 29500);
  EXPECT_EQ(launch.attempt, "4");
  EXPECT_EQ(launch.timeout, kProcessTimeout);
  EXPECT_FALSE(launch.store_is_there);
  EXPECT_EQ(launch.local_rank, 0);
  set.insert({{"TORCHELASTIC_USE_AGENT_STORE", "True"},
              {"TSALLIS_PROCESS_TIMEOUT", "7"},
              {"LOCAL_RANK", "1"},
              {"GLOO_SOCKET_IFNAME", "lo"}});
  launch = ReadLaunch(variable);
  EXPECT_TRUE(launch.store_is_there);
  EXPECT_EQ(launch.local_rank, 1);
  EXPECT_EQ(launch.timeout, std::chrono::seconds(7));
  EXPECT_EQ(launch.interface, "lo");
}

TEST(Launch, NamesTheVariableThatIsWrong) {
  std::map<std::string, std::string> set = {{"RANK", "0"}};
  const auto expect = [&](const std::string& part) { ExpectContains(LaunchError(set), part); };
  expect("WORLD_SIZE: expected beside RANK or WORLD_SIZE, as torchrun sets it; it is not set");
  set["WORLD_SIZE"] = "2";
  expect("MASTER_ADDR: expected");
  set["MASTER_ADDR"] = "there";
  expect("MASTER_PORT: expected beside");
  set["MASTER_PORT"] = "70000";
  expect("MASTER_PORT: expected an integer from 1 to 65535, got \"70000\"");
  set["MASTER_PORT"] = "29500";
  set["RANK"] = "2";
  expect("RANK: expected an integer from 0 to 1, got \"2\"");
  set["RANK"] = "1";
  set["LOCAL_RANK"] = "-1";
  expect("LOCAL_RANK: expected an integer from 0 to 1, got \"-1\"");
  set.erase("LOCAL_RANK");
  set["TSALLIS_PROCESS_TIMEOUT"] = "1.5";
  expect("TSALLIS_PROCESS_TIMEOUT: expected an integer from 1 to");
  set.erase("TSALLIS_PROCESS_TIMEOUT");
  set["GLOO_SOCKET_IFNAME"] = "no-such-thing";
  expect("GLOO_SOCKET_IFNAME: expected a network interface of this machine");
  set.erase("GLOO_SOCKET_IFNAME");
  EXPECT_EQ(LaunchError(set), "no error");
}

TEST(Processes, TensorsOnADevice) {
  ExpectNoErrors(Together(3, [](const Processes& processes) {
    const at::Device device = DeviceNamed("pretend");
    const at::Tensor x = (at::arange(1000, at::kFloat) * (processes.Rank() + 1)).to(device);
    EXPECT_FALSE(processes.Agree(x));
    processes.Sum(x);
    EXPECT_TRUE(at::equal(x.cpu(), at::arange(1000, at::kFloat) * 6));
    EXPECT_TRUE(processes.Agree(x));
    x.fill_(processes.Rank() + 5);
    processes.Broadcast(x);
    EXPECT_TRUE(at::equal(x.cpu(), at::full({1000}, 5.0F)));
  }));
}

TEST(Processes, SumBroadcastShareAndAgree) {
  ExpectNoErrors(Together(3, [](const Processes& processes) {
    const int rank = processes.Rank();
    EXPECT_EQ(processes.Size(), 3);
    for (const auto dtype : {at::kFloat, at::kDouble, at::kLong}) {
      for (const std::int64_t size : {1, 2, 1000}) {
        const at::Tensor x = at::arange(size, dtype) * (rank + 1);
        processes.Sum(x);
        EXPECT_TRUE(at::equal(x, at::arange(size, dtype) * 6));
        x.fill_(rank + 5);
        processes.Broadcast(x);
        EXPECT_TRUE(at::equal(x, at::full({size}, 5, dtype)));
      }
    }
    at::Tensor x = at::linspace(-1.0, 1.0, 100);
    EXPECT_TRUE(processes.Agree(x));
    if (rank == 2) x[57] = std::nextafter(x[57].item<float>(), 2.0F);
    EXPECT_FALSE(processes.Agree(x));
    std::int64_t next = 0;
    for (int other = 0; other < rank; ++other) next += 10 * (other + 1) / 3 - 10 * other / 3;
    EXPECT_EQ(processes.Share(10).first, next);
    const at::Tensor all = at::scalar_tensor(processes.Share(10).second, at::kLong);
    processes.Sum(all);
    EXPECT_EQ(all.item<std::int64_t>(), 10);
  }));
  EXPECT_EQ(Processes().Share(10), (std::pair<std::int64_t, std::int64_t>{0, 10}));
}

TEST(Processes, WhoFailsSaysWhyAndWhoIsGoneIsNamed) {
  // In one process a connection ends when the group is given up.
  std::vector<std::string> errors = Together(3, [](const Processes& processes) {
    if (processes.Rank() == 1) throw std::runtime_error("mine: the disk is full");
    processes.Sum(at::ones({4}));
  });
  EXPECT_EQ(errors[1], "mine: the disk is full");
  EXPECT_EQ(errors[0], "rank 1 failed: mine: the disk is full");
  EXPECT_EQ(errors[2], "rank 1 failed: mine: the disk is full");
  errors = Together(3, [](const Processes& processes) {
    if (processes.Rank() == 2) throw Interrupted("mine: gone without a word");
    processes.Sum(at::ones({4}));
  });
  for (const std::size_t rank : {0, 1}) {
    EXPECT_TRUE(errors[rank].starts_with("rank 2 was lost (")) << errors[rank];
  }
}

TEST(Processes, WhoDoesNotComeIsNamed) {
  Launch launch;
  launch.size = 3;
  launch.host = "127.0.0.1";
  launch.port = FreePort();
  launch.timeout = std::chrono::milliseconds(200);
  ExpectContains(ErrorTextOf([&] { Processes::Connect(launch, never); }),
                 "ranks 1, 2 of 3 did not come");
  const std::atomic<bool> stop{true};
  EXPECT_THROW(Processes::Connect(launch, stop), Interrupted);
}

TEST(Processes, AWriteToOneThatIsGoneIsAnError) {
  std::signal(SIGPIPE, SIG_DFL);
  ExpectNoErrors(Together(2, [](const Processes&) {}));
  struct sigaction now {};
  sigaction(SIGPIPE, nullptr, &now);
  EXPECT_EQ(now.sa_handler, SIG_IGN);
}

TEST(SequencePart, HeadsAreTradedForTokensAndBack) {
  for (const char* device : {"cpu", "pretend"}) {
    ExpectNoErrors(Together(3, [&](const Processes& processes) {
      // Neither heads nor tokens are a multiple of the processes.
      constexpr std::int64_t kHeads = 4, kLength = 11;
      const SequencePart part{kLength, processes.Rank(), 3,
                              std::bind_front(&Processes::Exchange, processes)};
      const auto [head, heads] = part.Own(kHeads);
      const auto [begin, count] = part.Own(kLength);
      for (const auto dtype : {at::kFloat, at::kBFloat16}) {
        const at::Tensor all = at::arange(2 * kHeads * kLength * 3, at::kFloat)
                                   .view({2, kHeads, kLength, 3})
                                   .to(DeviceNamed(device), dtype);
        const at::Tensor own = all.narrow(2, begin, count).requires_grad_(true);
        const at::Tensor traded = Traded(part, own, 1, 2, kLength);
        EXPECT_TRUE(at::equal(traded.cpu(), all.narrow(1, head, heads).cpu()));
        // Autograd has one thread for a device, which processes that are threads here would share.
        if (std::string(device) != "cpu") continue;
        traded.backward(all.narrow(1, head, heads));
        EXPECT_TRUE(at::equal(own.grad().cpu(), own.detach().cpu()));
      }
    }));
  }
}

TokenBatch Ragged(std::int64_t vocabulary) {
  // The first of the processes scores nothing.
  return DrawnBatch({13, 8, 12}, 13, vocabulary,
                    [](std::int64_t, std::int64_t i) { return i >= 6 && i % 4 != 3; });
}

TEST(SequencePart, PartsOfSequencesGiveTheGradientOfWholeOnes) {
  std::vector<DecoderConfig> configs;
  for (const Variant& variant : Variants()) configs.push_back(ConfigOf(variant));
  ASSERT_GT(configs.size(), 40U);
  const TokenBatch batch = Ragged(configs.front().vocabulary);
  ExpectNoErrors(Together(3, [&](const Processes& processes) {
    const OneThread one_thread;
    for (std::size_t i = 0; i < configs.size(); ++i) {
      SCOPED_TRACE(ToJson(configs[i]).dump());
      Decoder whole(configs[i], 5);
      Shake(whole);
      const SequenceScore expected = whole.LossAndGradient(batch);
      Decoder split(configs[i], 5);
      Shake(split);
      const SequencePart part{batch.tokens.size(1), processes.Rank(), 3,
                              std::bind_front(&Processes::Exchange, processes)};
      const auto [begin, count] = part.Own(part.length);
      GradientOptions options;
      options.part = &part;
      options.denominator = expected.scored;
      const SequenceScore score = split.LossAndGradient(
          {batch.tokens.narrow(1, begin, count), batch.labels.narrow(1, begin, count), {}},
          options);
      if (processes.First()) {
        EXPECT_EQ(score.scored, 0);
      }
      const at::Tensor sums = at::tensor(
          {score.loss, static_cast<double>(score.scored), static_cast<double>(score.hits)});
      processes.Sum(sums);
      processes.Sum(split.FlatGradients());
      EXPECT_NEAR(sums[0].item<double>(), expected.loss, 1e-5 * expected.loss);
      EXPECT_EQ(sums[1].item<std::int64_t>(), expected.scored);
      EXPECT_EQ(sums[2].item<std::int64_t>(), expected.hits);
      for (const auto& [name, value] : whole.Parameters()) {
        const auto gradient = [&, &value = value](const Decoder& model) {
          return model.FlatGradients().narrow(0, value.storage_offset(), value.numel());
        };
        const double size = gradient(whole).abs().max().item<double>();
        EXPECT_LT((gradient(split) - gradient(whole)).abs().max().item<double>(),
                  1e-4 * size + 1e-8)
            << name;
      }
    }
  }));
}

TEST(SequencePart, OtherModelsTakeWholeSequences) {
  const SequencePart part{13, 0, 1, {}};
  GradientOptions options;
  options.part = &part;
  EXPECT_THROW(EncoderDecoder(Tiny(), 1, at::kCPU).LossAndGradient(Ragged(11), options),
               InvalidArgument);
}

TEST(GradientSum, SumsEveryNumberOnceHoweverItIsCutUp) {
  constexpr std::int64_t kBucket = GradientSum::kBucket;
  constexpr std::int64_t kSize = 3 * kBucket + 5;
  // Borders of what is ready, from the back.
  const std::vector<std::vector<std::int64_t>> cuts = {
      {0},
      {3 * kBucket, 2 * kBucket + 1, 2 * kBucket, 17, 0},
      {kBucket, kBucket},
      {},
      {kSize - 1, kSize - kBucket, 3}};
  ExpectNoErrors(Together(2, [&](const Processes& processes) {
    const at::Tensor gradients = at::empty({kSize});
    GradientSum sum(processes, gradients);
    for (const auto& borders : cuts) {  // one after the other: a step each
      gradients.copy_(at::arange(kSize) * (1 + processes.Rank()));
      std::int64_t end = kSize;
      for (const std::int64_t begin : borders) {
        sum.Ready(begin, end);
        end = begin;
      }
      sum.Finish();
      EXPECT_TRUE(at::equal(gradients, at::arange(kSize) * 3));
    }
  }));
}

TEST(GradientSum, ABucketLeavesBeforeTheRestIsReady) {
  constexpr std::int64_t kSize = 2 * GradientSum::kBucket;
  ExpectNoErrors(Together(2, [&](const Processes& processes) {
    const at::Tensor gradients = at::ones({kSize});
    GradientSum sum(processes, gradients);
    sum.Ready(kSize - GradientSum::kBucket, kSize);
    const auto last = [&] { return gradients[kSize - 1].item<float>(); };
    for (int i = 0; i < 20000 && last() == 1.0F; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_EQ(last(), 2.0F);
    EXPECT_EQ(gradients[0].item<float>(), 1.0F);
    sum.Finish();
    EXPECT_TRUE(at::equal(gradients, at::full({kSize}, 2.0F)));
  }));
}

// Eight samples a part: two processes share them evenly, three do not.
Recipe SharedSequences() {
  Recipe recipe = SmallSequences();
  recipe.task.train_length_min = 3;
  recipe.task.train_length_max = 8;
  TrainConfig& train = recipe.train;
  train.clip = 0.1;  // below every norm
  train.accumulate = 2;
  train.checkpoint_every = 5;
  train.validate_every = 6;
  train.best_length = 8;
  train.validate_samples = 7;
  recipe.methods = {recipe.Method("entmax")};
  return recipe;
}

// Weights after `steps` in each of `size` processes, or of the one step that is done after a
// request to stop.
std::vector<at::Tensor> TrainedBy(int size, const Recipe& recipe,
                                  const std::filesystem::path& folder, std::int64_t steps,
                                  bool stops = false) {
  std::vector<at::Tensor> weights(static_cast<std::size_t>(size));
  const std::vector<std::string> errors = Together(size, [&](const Processes& processes) {
    const TrainingJob job{&recipe, &recipe.methods[0], 3, steps, folder, processes};
    // One is asked; all stop.
    const std::atomic<bool> stop{stops && processes.Rank() + 1 == size};
    at::Tensor& own = weights[static_cast<std::size_t>(processes.Rank())];
    const std::unique_ptr<Experiment> experiment = MakeExperiment(job);
    Train(*experiment, job, Silent, stop);
    own = experiment->FlatParameters().cpu().clone();
  });
  for (const std::string& error : errors) {
    if (stops) {
      ExpectContains(error, "stopped at step");
    } else {
      EXPECT_EQ(error, "");
    }
  }
  return weights;
}

TEST(Training, SeveralProcessesGiveOnesWeightsUpToRounding) {
  Recipe away = SharedSequences();
  away.train.device = "pretend";
  Recipe split = SharedSequences();
  split.train.split = "sequence";
  split.model.decoder.heads = 4;  // of which three processes have unequal shares
  for (const Recipe& recipe : {SharedSequences(), away, split, SmallRecipe()}) {
    const TemporaryFolder folder;
    const std::string name =
        recipe.task.name + " on " + recipe.train.device + " by " + recipe.train.split;
    const at::Tensor one = TrainedBy(1, recipe, folder.Path() / "one", 12)[0];
    const at::Tensor start = TrainedBy(1, recipe, folder.Path() / "start", 1)[0];
    const float moved = (one - start).abs().max().item<float>();
    for (const int size : {2, 3}) {
      const auto path = folder.Path() / std::to_string(size);
      const std::vector<at::Tensor> several = TrainedBy(size, recipe, path, 12);
      for (const at::Tensor& other : several) EXPECT_TRUE(at::equal(several[0], other)) << name;
      EXPECT_LT((several[0] - one).abs().max().item<float>(), 1e-3F * moved) << name << " " << size;
      const auto again = folder.Path() / ("again-" + std::to_string(size));
      EXPECT_TRUE(at::equal(several[0], TrainedBy(size, recipe, again, 12)[0])) << name;
    }
    // Every number of processes goes on with what another one left.
    for (const int size : {1, 2, 3, 1, 2}) {
      TrainedBy(size, recipe, folder.Path() / "passed-on", 12, /*stops=*/true);
    }
    const at::Tensor passed_on = TrainedBy(3, recipe, folder.Path() / "passed-on", 12)[2];
    EXPECT_LT((passed_on - one).abs().max().item<float>(), 1e-3F * moved) << name;
  }
}

TEST(Training, ValidationIsSharedAndStopsInAllProcesses) {
  Recipe recipe = SharedSequences();
  recipe.task.generator = MakeSequenceTask("n-back", {"symbols=30"});
  recipe.train.best_length = 11;
  recipe.train.validate_samples = 70;  // of which some are right by chance
  const TrainingJob alone{&recipe, &recipe.methods[0], 3, 5, "unused"};
  const auto loud = [](const TrainingJob& job) {  // answers differ
    auto experiment = std::make_unique<SequenceExperiment>(job);
    at::Tensor(experiment->FlatParameters()).mul_(20.0F);
    return experiment;
  };
  const Trainable::Values wanted = loud(alone)->Validate(never);
  ASSERT_EQ(wanted.size(), 2U);
  for (const Trainable::Value& value : wanted) EXPECT_GT(value.metric, 0.0) << value.length;
  ExpectNoErrors(Together(3, [&](const Processes& processes) {
    TrainingJob job = alone;
    job.processes = processes;
    const std::unique_ptr<SequenceExperiment> training = loud(job);
    EXPECT_EQ(training->Validate(never), wanted);
    const std::atomic<bool> stop{processes.Rank() == 1};
    EXPECT_THROW(training->Validate(stop), Interrupted);
  }));
}

TEST(Training, MoreProcessesThanSamplesAreRefused) {
  Recipe recipe = SharedSequences();
  recipe.train.batch = 4;
  const TemporaryFolder folder;
  const std::vector<std::string> errors = Together(3, [&](const Processes& processes) {
    const TrainingJob job{&recipe, &recipe.methods[0], 3, 5, folder.Path() / "a", processes};
    const SequenceExperiment experiment(job);
  });
  for (const std::string& error : errors) {
    EXPECT_EQ(error,
              "train.batch: expected at least one sample for each of 3 processes in each of "
              "train.accumulate parts, got 4");
  }
}

TEST(Training, MoreProcessesThanHeadsOrTokensAreRefused) {
  Recipe recipe = SharedSequences();
  recipe.train.split = "sequence";
  recipe.train.batch = 2;  // samples are not shared
  recipe.task.train_length_min = 1;
  const auto error = [&](int size) {
    return Together(size, [&](const Processes& processes) {
      const TrainingJob job{&recipe, &recipe.methods[0], 3, 5, "unused", processes};
      const SequenceExperiment experiment(job);
    });
  };
  ExpectNoErrors(error(2));
  for (const std::string& text : error(3)) {
    EXPECT_EQ(text,
              "model.heads: expected at least 3 heads, one for each process, with train.split = "
              "\"sequence\", got 2");
  }
  recipe.model.decoder.heads = 8;
  const std::int64_t tokens = static_cast<std::int64_t>(
      recipe.task.Sequences()->Draw(3, Split::kTrain, 0, 1).tokens.size());
  ASSERT_LT(tokens, 8);
  for (const std::string& text : error(8)) {
    EXPECT_EQ(text,
              "task.train_length: expected at least 8 tokens in a sequence, one for each process, "
              "with train.split = \"sequence\", got " +
                  std::to_string(tokens));
  }
}

// Its weights are not the same in all processes from step 2 on.
class Drifting : public SequenceExperiment {
 public:
  explicit Drifting(const TrainingJob& job)
      : SequenceExperiment(job), rank_(job.processes.Rank()) {}

  StepScore LossAndGradient(std::int64_t step, const GradientReady& ready) override {
    if (step == 2 && rank_ == 1) at::Tensor(FlatParameters())[3] += 1e-6;
    return SequenceExperiment::LossAndGradient(step, ready);
  }

 private:
  int rank_;
};

TEST(Training, ProcessesWhoseWeightsDifferSaveNothing) {
  const Recipe recipe = SharedSequences();
  const TemporaryFolder folder;
  const std::vector<std::string> errors = Together(2, [&](const Processes& processes) {
    const TrainingJob job{&recipe, &recipe.methods[0], 3, 20, folder.Path() / "a", processes};
    Drifting training(job);
    Train(training, job, {{"test", true}}, Silent, never);
  });
  for (const std::string& error : errors) {
    ExpectContains(error, "the processes' weights differ after step 5");
  }
  EXPECT_FALSE(std::filesystem::exists(folder.Path() / "a" / "last"));
}

}  // namespace
}  // namespace tsallis::lab
