// tsallis info: what this program is and what it found to run on.
#include <fmt/format.h>
#include <torch/version.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/info_kernels.h"
#include "cli/terminal.h"
#include "core/parallel.h"
#include "core/version.h"
#include "tsallis/cpu.h"
#include "tsallis/cuda.h"

namespace tsallis::cli {

namespace {

std::string Join(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

void PrintCuda() {
  const CudaInfo cuda = QueryCuda();
  if (cuda.architectures.empty()) {
    fmt::print("CUDA kernels       not compiled: {}\n", cuda.why_not_compiled);
    return;
  }
  std::vector<std::string> names;
  for (const std::string& architecture : cuda.architectures) names.push_back("sm_" + architecture);
  fmt::print("CUDA kernels       {}, by {}\n", Join(names), cuda.compiler);
  if (cuda.devices.empty()) fmt::print("CUDA devices       none: {}\n", cuda.why_no_devices);
  for (std::size_t i = 0; i < cuda.devices.size(); ++i) {
    fmt::print("CUDA device {:<6} {}\n", i, Describe(cuda.devices[i]));
  }
}

class InfoCommand : public Command {
 public:
  std::string Name() const override { return "info"; }
  std::string Summary() const override {
    return "Show version, processor, instruction sets and kernels";
  }
  std::string Example() const override { return "  tsallis info --json\n  tsallis info --kernels"; }

  void Declare(CLI::App& app) override {
    app.add_flag("--json", json_, "Print one JSON document");
    app.add_flag("--kernels", kernels_,
                 "Also attention's kernels, which of them run on this machine, and why");
    app.add_flag("--quiet", quiet_, "Print the version only; with --kernels, their names");
  }

  int Run(const Invocation&) override {
    const int threads = Threads(Context{});
    const CpuInfo cpu = QueryCpu();
    if (json_) {
      nlohmann::ordered_json document = {{"version", Version()},
                                         {"commit", GitCommit()},
                                         {"processor", cpu.processor},
                                         {"isa_compiled", cpu.compiled_targets},
                                         {"isa", cpu.chosen_target},
                                         {"avx_vnni", cpu.avx_vnni},
                                         {"avx512_vnni", cpu.avx512_vnni},
                                         {"avx512_bf16", cpu.avx512_bf16},
                                         {"amx_bf16", cpu.amx_bf16},
                                         {"arm_dotprod", cpu.arm_dotprod},
                                         {"arm_bf16", cpu.arm_bf16},
                                         {"arm_i8mm", cpu.arm_i8mm},
                                         {"vendor", cpu.vendor},
                                         {"fast_bfloat16", FastBfloat16(cpu)},
                                         {"threads", threads},
                                         {"torch", TORCH_VERSION}};
      const CudaInfo cuda = QueryCuda();
      nlohmann::ordered_json devices = nlohmann::json::array();
      for (const CudaDevice& device : cuda.devices) {
        devices.push_back({{"name", device.name},
                           {"capability", fmt::format("{}.{}", device.major, device.minor)},
                           {"memory", device.memory},
                           {"why_unusable", device.why_unusable}});
      }
      document["cuda"] = {{"architectures", cuda.architectures},
                          {"compiler", cuda.compiler},
                          {"why_not_compiled", cuda.why_not_compiled},
                          {"devices", devices},
                          {"why_no_devices", cuda.why_no_devices}};
      if (kernels_) document.update(AttentionKernelsJson());
      PrintJson(document);
    } else if (quiet_) {
      if (kernels_) {
        PrintAttentionKernelNames();
      } else {
        fmt::print("{}\n", Version());
      }
    } else {
      fmt::print("tsallis            {}\n", Version());
      fmt::print("commit             {}\n", GitCommit());
      fmt::print("processor          {}\n", cpu.processor.empty() ? "unknown" : cpu.processor);
      fmt::print("instruction sets   {} (chosen: {})\n", Join(cpu.compiled_targets),
                 cpu.chosen_target);
      fmt::print("decoders compute   in {} unless told otherwise\n",
                 FastBfloat16(cpu) ? "bfloat16" : "float32");
      fmt::print("threads            {}\n", threads);
      fmt::print("torch              {}\n", TORCH_VERSION);
      PrintCuda();
      if (kernels_) {
        fmt::print("\n");
        PrintAttentionKernels();
      }
    }
    return 0;
  }

 private:
  bool json_ = false;
  bool kernels_ = false;
  bool quiet_ = false;
};

}  // namespace

std::unique_ptr<Command> MakeInfo() { return std::make_unique<InfoCommand>(); }

}  // namespace tsallis::cli
