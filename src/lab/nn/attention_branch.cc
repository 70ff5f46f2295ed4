#include "lab/nn/attention_branch.h"

#include <ATen/ATen.h>

#include <utility>

namespace tsallis::lab {

using at::Tensor;

AttentionBranch::AttentionBranch(const DecoderConfig& config, LayerPlace place,
                                 const std::string& prefix, ParameterList& parameters,
                                 RowWorkers& workers, at::ScalarType products)
    : place_(std::move(place)),
      workers_(workers),
      gain_(config, prefix + "norm.weight", parameters),
      attention_(config, place_.layer, place_.sight, prefix, parameters, workers, products),
      join_(config, prefix, parameters, workers, products) {}

Tensor AttentionBranch::operator()(const Tensor& x, const DecoderRows& rows, const LayerPass& pass,
                                   const Tensor& picked, MemoryStream* memory) {
  Tensor stream, attended;
  {
    LayerAttention::Inputs inputs = attention_.Project(x, gain_.value, rows);
    if (memory != nullptr) inputs.memory = Projected(*memory);
    stream = inputs.stream;
    attended = Attended(inputs, rows, picked.defined(), pass);
  }
  if (picked.defined()) {
    for (Tensor* wanted : {&stream, &attended}) {
      *wanted = RunStage("rows", {.inputs = {*wanted, picked}, .workers = &workers_}).front();
    }
  }
  return join_(stream, attended, rows.block);
}

void AttentionBranch::Remember(MemoryStream& memory, const CachedRows& cached) {
  attention_.Append(Projected(memory), cached, place_.layer);
}

LayerAttention::Memory AttentionBranch::Projected(MemoryStream& memory) {
  LayerAttention::Memory projected =
      attention_.ProjectMemory(memory.stream, memory.gain, memory.rows);
  memory.stream = projected.stream;
  return projected;
}

Tensor AttentionBranch::Attended(const LayerAttention::Inputs& inputs, const DecoderRows& rows,
                                 bool picks, const LayerPass& pass) {
  using Queries = LayerAttention::Queries;
  if (pass.own != nullptr) {
    const CachedRows& cached = place_.sight == Sight::kOther ? *pass.sources : *pass.own;
    return attention_.Extend(inputs, rows, cached, place_.layer);
  }
  const Queries queries = picks && !pass.visit ? Queries::kLast : Queries::kAll;
  if (!pass.visit && !pass.visible) return attention_(inputs, rows, queries, pass.part);
  const LayerInput input{place_, attention_, rows, inputs};
  const Tensor visible = pass.visible ? pass.visible(input) : Tensor();
  LayerAttention::Statistics statistics;
  const Tensor out =
      attention_.Look(inputs, rows, queries, pass.visit ? &statistics : nullptr, visible);
  if (pass.visit) pass.visit({input, rows.scored, statistics});
  return out;
}

}  // namespace tsallis::lab
