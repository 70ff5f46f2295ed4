// What this build and this machine are, for Python: read through ctypes, without torch.
#include <string>

#include "core/version.h"
#include "tsallis/cpu.h"
#include "tsallis/cuda.h"
#include "tsallis/rows.h"

namespace tsallis {
namespace {

std::string Quoted(const std::string& text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return quoted + '"';
}

template <typename Items, typename Name>
std::string List(const Items& items, const Name& name) {
  std::string list = "[";
  for (const auto& item : items) list += (list.size() > 1 ? ", " : "") + Quoted(name(item));
  return list + ']';
}

// [map][dtype][kind]: whether the backward pass reads the scores; kind: alpha at most 2, larger,
// one for each row.
std::string ReadsScores() {
  std::string all;
  for (const RowMap map : AllRowMaps()) {
    all += all.empty() ? "[" : ", [";
    for (const DType dtype :
         {DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kFloat64}) {
      RowMapParams params;
      params.map = map;
      const auto reads = [&] { return BackwardReadsScores(params, dtype) ? "true" : "false"; };
      all += dtype == DType::kFloat32 ? "[" : ", [";
      params.alpha = 1.5;
      all += reads();
      params.alpha = 3.0;
      all += std::string(", ") + reads();
      const double alpha = 3.0;
      params.alpha_per_row = &alpha;
      all += std::string(", ") + reads() + ']';
    }
    all += ']';
  }
  return '[' + all + ']';
}

std::string About() {
  const auto cpu = QueryCpu();
  const auto name = [](RowMap map) { return std::string(Name(map)); };
  return "{\"version\": " + Quoted(Version()) + ", \"commit\": " + Quoted(GitCommit()) +
         ", \"processor\": " + Quoted(cpu.processor) +
         ", \"cpu_target\": " + Quoted(cpu.chosen_target) +
         ", \"maps\": " + List(AllRowMaps(), name) +
         ", \"attention_maps\": " + List(AttentionMaps(), name) +
         ", \"reads_scores\": " + ReadsScores() + '}';
}

std::string AboutCuda() {
  const CudaInfo cuda = QueryCuda();
  const auto same = [](const std::string& text) { return text; };
  const auto describe = [](const CudaDevice& device) { return Describe(device); };
  return "{\"architectures\": " + List(cuda.architectures, same) +
         ", \"compiler\": " + Quoted(cuda.compiler) +
         ", \"why_not_compiled\": " + Quoted(cuda.why_not_compiled) +
         ", \"devices\": " + List(cuda.devices, describe) +
         ", \"why_no_devices\": " + Quoted(cuda.why_no_devices) + '}';
}

}  // namespace
}  // namespace tsallis

// Both give JSON, as long as the library is loaded. The second asks CUDA's runtime for devices.
extern "C" __attribute__((visibility("default"))) const char* TsallisAbout() {
  static const std::string text = tsallis::About();
  return text.c_str();
}
extern "C" __attribute__((visibility("default"))) const char* TsallisAboutCuda() {
  static const std::string text = tsallis::AboutCuda();
  return text.c_str();
}
