// Seconds of training steps of the decoder: ours, for bench/training_sequences.py to set beside the
// same model in plain PyTorch. Usage: decoder_steps CONFIG BATCH LENGTH STEPS THREADS; CONFIG is a
// decoder's configuration as JSON. Prints one JSON object: "seconds" are those that pass at every
// step, "process_seconds" the processor's, which a busy machine disturbs less, and "bytes" what the
// process came to hold from making the model on.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <malloc.h>
#include <sys/resource.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <nlohmann/json.hpp>

#include "lab/base/random.h"
#include "lab/nn/decoder.h"
#include "lab/nn/parameters.h"
#include "lab/train/adam_step.h"

namespace {

using tsallis::lab::Decoder;
using tsallis::lab::TokenBatch;

// Random tokens; the second half of every sequence is scored, as where a target follows its source.
TokenBatch Draw(std::int64_t step, std::int64_t batch, std::int64_t n, std::int64_t vocabulary) {
  tsallis::lab::RandomStream random(1, tsallis::lab::Purpose::kTrain,
                                    static_cast<std::uint64_t>(step));
  TokenBatch drawn{at::empty({batch, n}, at::kLong),
                   at::full({batch, n}, tsallis::lab::kNotScored, at::kLong), at::Tensor()};
  auto* tokens = drawn.tokens.mutable_data_ptr<std::int64_t>();
  auto* labels = drawn.labels.mutable_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < batch * n; ++i) {
    tokens[i] = random.Below(vocabulary);
    if (i % n >= n / 2) labels[i] = random.Below(vocabulary);
  }
  return drawn;
}

double ProcessorSeconds() {
  return static_cast<double>(std::clock()) / static_cast<double>(CLOCKS_PER_SEC);
}

double WallSeconds() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

// The most that the process has held.
std::int64_t PeakBytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return std::int64_t{usage.ru_maxrss} * 1024;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 6) {
    std::fprintf(stderr, "usage: decoder_steps CONFIG BATCH LENGTH STEPS THREADS\n");
    return 2;
  }
  // Keeps big blocks instead of returning them to the system, as the program does.
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  at::set_num_threads(std::atoi(argv[5]));
  at::globalContext().setFlushDenormal(true);
  try {
    const auto json = nlohmann::ordered_json::parse(argv[1]);
    const std::int64_t before = PeakBytes();
    Decoder model(tsallis::lab::DecoderFromJson(json, "CONFIG"), 1);
    const std::int64_t batch = std::atoll(argv[2]), n = std::atoll(argv[3]);
    const std::int64_t steps = std::atoll(argv[4]);
    const std::int64_t count = model.FlatParameters().numel();
    at::Tensor first = at::zeros({count}), second = at::zeros({count});
    nlohmann::ordered_json seconds = nlohmann::ordered_json::array();
    nlohmann::ordered_json process_seconds = nlohmann::ordered_json::array();
    double loss = 0.0;
    for (std::int64_t step = 1; step <= steps + 2; ++step) {  // two to warm up
      const TokenBatch drawn = Draw(step, batch, n, model.Config().vocabulary);
      const double start = WallSeconds();
      const double process_start = ProcessorSeconds();
      loss = model.LossAndGradient(drawn).Mean();
      const double t = static_cast<double>(step);
      tsallis::lab::AdamStep(
          {1e-3F, 0.9F, 0.99F, 1e-8F, 0.0F, static_cast<float>(1.0 - std::pow(0.9, t)),
           static_cast<float>(1.0 - std::pow(0.99, t))},
          count, model.FlatGradients().const_data_ptr<float>(),
          model.FlatParameters().mutable_data_ptr<float>(), first.mutable_data_ptr<float>(),
          second.mutable_data_ptr<float>());
      tsallis::lab::MarkChanged(model.FlatParameters());
      if (step <= 2) continue;
      process_seconds.push_back(ProcessorSeconds() - process_start);
      seconds.push_back(WallSeconds() - start);
    }
    const nlohmann::ordered_json result = {{"seconds", seconds},
                                           {"process_seconds", process_seconds},
                                           {"loss", loss},
                                           {"bytes", PeakBytes() - before},
                                           {"parameters", model.ParameterCount()},
                                           {"compute", model.Config().compute}};
    std::puts(result.dump().c_str());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "decoder_steps: %s\n", error.what());
    return 1;
  }
  return 0;
}
