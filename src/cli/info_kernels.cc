#include "cli/info_kernels.h"

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tsallis/attention.h"

namespace tsallis::cli {

namespace {

// A call that is often met. Unnamed members: entmax with alpha = 1.5, causal, one key head a head.
struct Example {
  const char* name;
  DType dtype = DType::kFloat32;
  std::int64_t batch = 1, heads = 8, kv_heads = 8, q_len = 1, k_len = 1, head_dim = 64;
  RowMap map = RowMap::kEntmax;
  double alpha = 1.5;
  bool causal = true;
  bool alibi = false;
  bool sink = false;
};

std::vector<Example> Examples() {
  return {
      {.name = "training", .batch = 128, .q_len = 64, .k_len = 64, .head_dim = 32},
      {.name = "training, sparsemax",
       .batch = 128,
       .q_len = 128,
       .k_len = 128,
       .head_dim = 32,
       .alpha = 2.0},
      {.name = "training, softmax",
       .batch = 128,
       .q_len = 64,
       .k_len = 64,
       .head_dim = 32,
       .map = RowMap::kSoftmax},
      {.name = "training, adaptive temperature",
       .batch = 128,
       .q_len = 64,
       .k_len = 64,
       .head_dim = 32,
       .map = RowMap::kAdaptiveTemperature},
      {.name = "training, stick-breaking",
       .batch = 128,
       .q_len = 64,
       .k_len = 64,
       .head_dim = 32,
       .map = RowMap::kStickBreaking},
      {.name = "prompt, softmax with a sink",
       .q_len = 4096,
       .k_len = 4096,
       .map = RowMap::kSoftmax,
       .sink = true},
      {.name = "prompt", .q_len = 4096, .k_len = 4096},
      {.name = "prompt, bfloat16", .dtype = DType::kBFloat16, .q_len = 4096, .k_len = 4096},
      {.name = "prompt, softmax in bfloat16",
       .dtype = DType::kBFloat16,
       .q_len = 4096,
       .k_len = 4096,
       .map = RowMap::kSoftmax},
      {.name = "prompt, float16", .dtype = DType::kFloat16, .q_len = 4096, .k_len = 4096},
      {.name = "prompt, ALiBi", .q_len = 4096, .k_len = 4096, .alibi = true},
      {.name = "long prompt, grouped heads",
       .dtype = DType::kBFloat16,
       .heads = 32,
       .kv_heads = 8,
       .q_len = 65536,
       .k_len = 65536,
       .head_dim = 128},
      {.name = "cross-attention", .batch = 8, .q_len = 256, .k_len = 2048, .causal = false},
      {.name = "decoding", .dtype = DType::kBFloat16, .k_len = 65536},
      {.name = "float64", .dtype = DType::kFloat64, .q_len = 256, .k_len = 256},
  };
}

AttentionChoice Choose(const Example& example) {
  // Only the shape counts, but arrays must be there. Nothing reads them.
  alignas(64) static const double nothing[8] = {};
  const auto array = [&](std::int64_t heads, std::int64_t rows, std::int64_t columns) {
    return ConstArray4{
        nothing, example.dtype, {heads * rows * columns, rows * columns, columns, 1}};
  };
  AttentionParams params;
  params.batch = example.batch;
  params.heads = example.heads;
  params.kv_heads = example.kv_heads;
  params.q_len = example.q_len;
  params.k_len = example.k_len;
  params.head_dim = params.value_dim = example.head_dim;
  params.q = array(example.heads, example.q_len, example.head_dim);
  params.k = array(example.kv_heads, example.k_len, example.head_dim);
  params.v = params.k;
  params.map = example.map;
  params.alpha = example.alpha;
  params.mask.causal = example.causal;
  if (example.alibi) params.terms.alibi_slopes = {nothing, DType::kFloat32, {0, 0, 0, 0}};
  if (example.sink) params.terms.sink = nothing;
  return ChooseAttentionKernel(params);
}

std::string Describe(const Example& example) {
  const std::string groups =
      example.kv_heads == example.heads ? "" : fmt::format(" ({} of keys)", example.kv_heads);
  std::string text =
      fmt::format("{} x {} heads{}, {} {}, {} keys, d = {}, {}, {}", example.batch, example.heads,
                  groups, example.q_len, example.q_len == 1 ? "query" : "queries", example.k_len,
                  example.head_dim, Name(example.dtype), Name(example.map));
  if (example.map == RowMap::kEntmax) text += fmt::format(" {}", example.alpha);
  if (example.causal) text += ", causal";
  return text;
}

}  // namespace

nlohmann::ordered_json AttentionKernelsJson() {
  nlohmann::ordered_json document;
  document["attention_kernels"] = nlohmann::ordered_json::array();
  for (const AttentionKernelInfo& kernel : AttentionKernels()) {
    document["attention_kernels"].push_back({{"name", kernel.name},
                                             {"usable", kernel.usable},
                                             {"isa", kernel.instruction_set},
                                             {"serves", kernel.serves}});
  }
  document["attention_choices"] = nlohmann::ordered_json::array();
  for (const Example& example : Examples()) {
    const AttentionChoice choice = Choose(example);
    nlohmann::ordered_json entry = {{"case", example.name},          {"dtype", Name(example.dtype)},
                                    {"batch", example.batch},        {"heads", example.heads},
                                    {"kv_heads", example.kv_heads},  {"q_len", example.q_len},
                                    {"k_len", example.k_len},        {"head_dim", example.head_dim},
                                    {"map", Name(example.map)},      {"causal", example.causal},
                                    {"alibi", example.alibi},        {"sink", example.sink},
                                    {"forward", choice.forward},     {"backward", choice.backward},
                                    {"leftovers", choice.leftovers}, {"reason", choice.reason}};
    if (example.map == RowMap::kEntmax) entry["alpha"] = example.alpha;
    document["attention_choices"].push_back(entry);
  }
  return document;
}

void PrintAttentionKernels() {
  fmt::print("Attention kernels, best first\n");
  for (const AttentionKernelInfo& kernel : AttentionKernels()) {
    fmt::print("  {:<18} {:<20} {}\n", kernel.name,
               kernel.usable ? kernel.instruction_set : "not on this machine", kernel.serves);
  }
  fmt::print("\nWhat runs here\n");
  for (const Example& example : Examples()) {
    const AttentionChoice choice = Choose(example);
    std::string chain = choice.forward;
    for (const std::string& kernel : choice.leftovers) chain += ", then " + kernel;
    if (choice.backward != choice.forward) chain += " (backward: " + choice.backward + ")";
    fmt::print("  {:<34} {}\n", example.name, chain);
    fmt::print("      {}\n      {}\n", Describe(example), choice.reason);
  }
}

void PrintAttentionKernelNames() {
  for (const AttentionKernelInfo& kernel : AttentionKernels()) {
    if (kernel.usable) fmt::print("{}\n", kernel.name);
  }
}

}  // namespace tsallis::cli
