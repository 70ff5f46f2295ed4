// Training steps per second of the set-attention model on one core: ours, for bench/training.py to
// set beside the same model in plain PyTorch. Usage: training_steps RECIPE METHOD STEPS; prints one
// JSON object.
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <malloc.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <filesystem>

#include "lab/config/recipe.h"
#include "lab/train/experiment.h"

int main(int argc, char** argv) {
  using namespace tsallis::lab;
  if (argc != 4) {
    std::fprintf(stderr, "usage: training_steps RECIPE METHOD STEPS\n");
    return 2;
  }
  // Keeps big blocks instead of returning them to the system, as the program does.
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  at::set_num_threads(1);
  std::string folder = (std::filesystem::temp_directory_path() / "tsallis-bench-XXXXXX").string();
  if (mkdtemp(folder.data()) == nullptr) return 1;
  int status = 0;
  try {
    const Recipe recipe = FindRecipe(argv[1]);
    const MethodConfig& method = recipe.Method(argv[2]);
    const std::int64_t steps = std::atoll(argv[3]);
    const std::atomic<bool> stop{false};
    const auto start = std::chrono::steady_clock::now();
    const std::clock_t processor = std::clock();
    JobStatus last;
    const TrainingJob job{&recipe, &method, 1, steps, std::filesystem::path(folder) / "job"};
    Train(
        *MakeExperiment(job), job, [&](const JobStatus& now) { last = now; }, stop);
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    const double process_seconds = static_cast<double>(std::clock() - processor) / CLOCKS_PER_SEC;
    std::printf("{\"steps\": %lld, \"seconds\": %.4f, \"process_seconds\": %.4f, \"loss\": %.5f}\n",
                static_cast<long long>(steps), seconds, process_seconds, last.loss);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "training_steps: %s\n", error.what());
    status = 1;
  }
  std::filesystem::remove_all(folder);
  return status;
}
