// tsallis info: what this program is and what it found to run on.
#include <fmt/format.h>
#include <torch/version.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/info_kernels.h"
#include "core/parallel.h"
#include "core/version.h"
#include "tsallis/cpu.h"

namespace tsallis::cli {

namespace {

std::string Join(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
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
      nlohmann::ordered_json document = {
          {"version", Version()},           {"commit", GitCommit()},
          {"processor", cpu.processor},     {"isa_compiled", cpu.compiled_targets},
          {"isa", cpu.chosen_target},       {"avx_vnni", cpu.avx_vnni},
          {"avx512_vnni", cpu.avx512_vnni}, {"avx512_bf16", cpu.avx512_bf16},
          {"amx_bf16", cpu.amx_bf16},       {"threads", threads},
          {"torch", TORCH_VERSION}};
      if (kernels_) document.update(AttentionKernelsJson());
      fmt::print("{}\n", document.dump(2));
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
      fmt::print("threads            {}\n", threads);
      fmt::print("torch              {}\n", TORCH_VERSION);
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
