#include "attention/kernels.h"

#include <algorithm>
#include <memory>
#include <string>

#include "attention/cpu/dense/dense.h"
#include "core/elements.h"
#include "core/parallel.h"

namespace tsallis {
namespace dense {
namespace {

// Threads that `pieces` of work can feed.
int Team(const Context& context, std::int64_t pieces) {
  return static_cast<int>(std::clamp<std::int64_t>(pieces, 1, Threads(context)));
}

// Calls work(thread, item) for every item < count, each on one of `threads` threads; which one must
// not matter.
template <class Work>
void Distribute(int threads, std::int64_t count, const Work& work) {
  ParallelTasks({.threads = threads}, count,
                [&](std::int64_t item, int thread) { work(thread, item); });
}

Most MostOfAll(const AttentionParams& params) {
  Most most;
  for (std::int64_t b = 0; b < params.batch; ++b) most.Include(params, Sequence::Of(params, b));
  return most;
}

// Gradients of keys or values: the caller's memory where it holds floats in rows of whole vectors,
// else a copy in float.
bool SumsInPlace(const MutableArray4& array, std::int64_t columns) {
  return array.dtype == DType::kFloat32 && array.strides[3] == 1 && columns == Padded(columns);
}

// Floats of the sums of one key head.
std::int64_t SumFloats(const AttentionParams& params, const AttentionGradients& gradients,
                       std::int64_t keys) {
  std::int64_t floats = 0;
  if (gradients.dk.data != nullptr && !SumsInPlace(gradients.dk, params.head_dim)) {
    floats += keys * Padded(params.head_dim);
  }
  if (gradients.dv.data != nullptr && !SumsInPlace(gradients.dv, params.value_dim)) {
    floats += keys * Padded(params.value_dim);
  }
  return floats;
}

// How the backward pass of a list of key heads is spread. Either every thread takes whole key
// heads, which keeps a group's weights in its own cache, or all threads work on one key head: slabs
// of several groups, first their rows, then their keys. The order of every sum is the same.
struct BackwardPlan {
  bool across = false;    // threads take key heads
  int threads = 1;        // of the one or the other kind
  std::int64_t slab = 1;  // groups at once; each has its memory

  BackwardPlan(const Context& context, const AttentionParams& params,
               const AttentionGradients& gradients, std::int64_t key_heads, const Most& most) {
    const std::int64_t* s = gradients.d_bias.strides;
    const bool bias = gradients.d_bias.data != nullptr, packed = params.ranges.packed;
    // Rows or whole key heads that add to the same elements take turns.
    const bool rows_share = bias && s[2] == 0;
    const bool key_heads_share =
        bias && ((s[0] == 0 && !packed) || s[1] == 0 || (packed && rows_share));
    threads = Team(context, key_heads);
    const std::int64_t rounds = (key_heads + threads - 1) / threads;
    // Idle threads at the end, and sums per thread, are what taking key heads may cost.
    const bool even = key_heads * 5 >= rounds * threads * 4 && threads == Threads(context);
    across = !key_heads_share &&
             (rows_share || (even && SumFloats(params, gradients, most.rows) <= 4 * kCacheFloats));
    if (across) return;
    threads = rows_share ? 1 : Threads(context);
    slab = threads == 1 ? 1 : 2 * threads;
  }
};

// One thread's or one team's memory in the backward pass.
struct BackwardMemory {
  BackwardMemory(const AttentionParams& params, const AttentionGradients& gradients,
                 const Most& most, int count, std::int64_t slab)
      : sums(Aligned<float>(SumFloats(params, gradients, most.rows))) {
    for (int i = 0; i < count; ++i) {
      threads.push_back(std::make_unique<Thread>(params, most, /*backward=*/true));
    }
    for (std::int64_t i = 0; i < slab; ++i) {
      groups.push_back(std::make_unique<GroupBuffers>(params, most.keys, /*backward=*/true));
    }
    slab_groups.reserve(static_cast<std::size_t>(slab));
  }

  std::vector<std::unique_ptr<Thread>> threads;
  std::vector<std::unique_ptr<GroupBuffers>> groups;
  std::vector<GroupBuffers*> slab_groups;
  Floats sums;
};

// The backward pass of one key head. heads: [heads of the key head], of this sequence.
class BackwardKeyHead {
 public:
  BackwardKeyHead(const PanelCall& call, const VectorCode& code, BackwardMemory& memory,
                  const KeyHead& key_head)
      : call_(call),
        code_(code),
        memory_(memory),
        sequence_(Sequence::Of(call.params, key_head.b)),
        kv_(key_head.kv) {}

  void Run(HeadSums* heads) {
    const AttentionParams& params = call_.params;
    PointSums();
    for (auto& thread : memory_.threads) thread->Point(params, sequence_, kv_);
    const std::int64_t group = params.heads / params.kv_heads;
    for (std::int64_t i = 0; i < group; ++i) {
      const std::int64_t h = kv_ * group + i;
      heads[i] = {};
      for (std::int64_t q_row = sequence_.q.begin; q_row < sequence_.q.end;) {
        q_row = Slab(h, q_row);
        for (const GroupBuffers* part : memory_.slab_groups) heads[i].Add(part->sums);
      }
    }
    StoreSums(call_.gradients->dk, sums_.dk, sums_.dk_pitch, params.head_dim);
    StoreSums(call_.gradients->dv, sums_.dv, sums_.dv_pitch, params.value_dim);
  }

 private:
  std::int64_t Panels() const { return RoundUp(sequence_.k.size(), kPanel) / kPanel; }
  int Threads() const { return static_cast<int>(memory_.threads.size()); }

  void PointSums() {
    const AttentionParams& params = call_.params;
    float* free = memory_.sums.get();
    const auto point = [&](const MutableArray4& array, std::int64_t columns, float** sum,
                           std::ptrdiff_t* pitch) {
      if (array.data == nullptr) return;
      if (SumsInPlace(array, columns)) {
        *sum = static_cast<float*>(array.data) +
               Offset(array.strides, sequence_.array_batch, kv_, sequence_.k.begin);
        *pitch = array.strides[2];
      } else {
        *sum = free;
        *pitch = Padded(columns);
        free += sequence_.k.size() * *pitch;
      }
      Distribute(Threads(), Panels(), [&](std::int64_t, std::int64_t panel) {
        const std::int64_t end = std::min((panel + 1) * kPanel, sequence_.k.size());
        for (std::int64_t j = panel * kPanel; j < end; ++j) {
          std::fill_n(*sum + j * *pitch, Padded(columns), 0.0f);
        }
      });
    };
    point(call_.gradients->dk, params.head_dim, &sums_.dk, &sums_.dk_pitch);
    point(call_.gradients->dv, params.value_dim, &sums_.dv, &sums_.dv_pitch);
  }

  // A slab's rows, then its keys; returns the row behind it.
  std::int64_t Slab(std::int64_t h, std::int64_t q_row) {
    std::vector<GroupBuffers*>& groups = memory_.slab_groups;
    groups.clear();
    for (auto& buffers : memory_.groups) {
      if (q_row >= sequence_.q.end) break;
      buffers->Point(GroupAt(call_.params, sequence_, h, q_row, sequence_.q.end));
      q_row = buffers->at.q.end;
      groups.push_back(buffers.get());
    }
    Distribute(Threads(), static_cast<std::int64_t>(groups.size()),
               [&](std::int64_t thread, std::int64_t i) {
                 code_.backward_rows(call_, *groups[i], *memory_.threads[thread]);
               });
    if (sums_.dk == nullptr && sums_.dv == nullptr) return q_row;
    std::int64_t begin = Panels(), end = 0;
    for (const GroupBuffers* group : groups) {
      if (group->panels == 0) continue;
      begin = std::min(begin, group->first_panel);
      end = std::max(end, group->first_panel + group->panels);
    }
    Distribute(Threads(), std::max<std::int64_t>(end - begin, 0),
               [&](std::int64_t, std::int64_t panel) {
                 code_.backward_keys(call_, groups, begin + panel, sums_);
               });
    return q_row;
  }

  void StoreSums(const MutableArray4& array, const float* sum, std::ptrdiff_t pitch,
                 std::int64_t columns) const {
    if (array.data == nullptr || SumsInPlace(array, columns)) return;
    const std::int64_t b = sequence_.array_batch;
    Distribute(Threads(), Panels(), [&](std::int64_t, std::int64_t panel) {
      const std::int64_t end = std::min((panel + 1) * kPanel, sequence_.k.size());
      for (std::int64_t j = panel * kPanel; j < end; ++j) {
        const std::int64_t start = Offset(array.strides, b, kv_, sequence_.k.begin + j);
        for (std::int64_t x = 0; x < columns; ++x) {
          StoreElement(array.data, array.dtype, start + x * array.strides[3], sum[j * pitch + x]);
        }
      }
    });
  }

  const PanelCall& call_;
  const VectorCode& code_;
  BackwardMemory& memory_;
  const Sequence sequence_;
  const std::int64_t kv_;
  KeySums sums_;
};

// Bytes of the tables of a scale-invariant term.
std::size_t TableBytes(const AttentionParams& params) {
  if (params.terms.scale_invariant == 0.0) return 0;
  return static_cast<std::size_t>(params.q_len + params.k_len) * 4 * sizeof(float);
}

// The groups of some rows.
std::vector<RowBlock> Groups(const AttentionParams& params, const std::vector<RowBlock>& rows) {
  std::vector<RowBlock> groups;
  for (const RowBlock& block : rows) {
    const Sequence sequence = Sequence::Of(params, block.b);
    for (std::int64_t q_row = block.q.begin; q_row < block.q.end;) {
      const Span q = GroupAt(params, sequence, block.h, q_row, block.q.end).q;
      groups.push_back({block.b, block.h, q});
      q_row = q.end;
    }
  }
  return groups;
}

// Outputs and statistics, or, with a receiver, the weights and nothing else. Groups in the order of
// (b, h) share the panels of their keys.
void RunRows(const Context& context, const AttentionParams& params, const AttentionOutputs& outputs,
             const WeightReceiver* receiver, const std::vector<RowBlock>& rows) {
  PanelCall call(params, &outputs, nullptr);
  call.receiver = receiver;
  const VectorCode code = ChooseVectorCode();
  Most most;
  std::int64_t b = -1;
  for (const RowBlock& block : rows) {
    if (block.b != b) most.Include(params, Sequence::Of(params, block.b));
    b = block.b;
  }
  const std::vector<RowBlock> groups = Groups(params, rows);
  const auto count = static_cast<std::int64_t>(groups.size());
  const int threads = Team(context, count);
  struct Memory {
    Memory(const AttentionParams& p, const Most& m)
        : thread(p, m, false), group(p, m.keys, false) {}
    Thread thread;
    GroupBuffers group;
  };
  std::vector<std::unique_ptr<Memory>> memory(static_cast<std::size_t>(threads));
  Distribute(threads, count, [&](std::int64_t thread, std::int64_t item) {
    if (memory[thread] == nullptr) memory[thread] = std::make_unique<Memory>(params, most);
    Memory& mine = *memory[thread];
    // The last rows of a causal head are the longest: they come first, so that threads end
    // together.
    const RowBlock& block = groups[count - 1 - item];
    const Sequence sequence = Sequence::Of(params, block.b);
    mine.thread.Point(params, sequence, KvHead(params, block.h));
    mine.group.Point(GroupAt(params, sequence, block.h, block.q.begin, block.q.end));
    code.forward(call, mine.group, mine.thread);
  });
}

void Forward(const Context& context, const AttentionParams& params, const AttentionOutputs& outputs,
             const std::vector<RowBlock>& rows, std::vector<RowBlock>*) {
  RunRows(context, params, outputs, nullptr, rows);
}

void Weights(const Context& context, const AttentionParams& params, const WeightReceiver& receiver,
             const std::vector<RowBlock>& rows, std::vector<RowBlock>*) {
  RunRows(context, params, {}, &receiver, rows);
}

void Backward(const Context& context, const AttentionParams& params,
              const AttentionGradients& gradients, const std::vector<KeyHead>& key_heads,
              HeadSums* heads, std::vector<KeyHead>*) {
  const PanelCall call(params, nullptr, &gradients);
  const VectorCode code = ChooseVectorCode();
  const auto count = static_cast<std::int64_t>(key_heads.size());
  Most most;
  for (const KeyHead& key_head : key_heads) most.Include(params, Sequence::Of(params, key_head.b));
  const std::int64_t group = params.heads / params.kv_heads;
  const auto run = [&](std::int64_t item, BackwardMemory& memory) {
    const KeyHead& key_head = key_heads[item];
    BackwardKeyHead(call, code, memory, key_head)
        .Run(heads + key_head.b * params.heads + key_head.kv * group);
  };
  const BackwardPlan plan(context, params, gradients, count, most);
  if (plan.across) {
    std::vector<std::unique_ptr<BackwardMemory>> memory(static_cast<std::size_t>(plan.threads));
    Distribute(plan.threads, count, [&](std::int64_t thread, std::int64_t item) {
      if (memory[thread] == nullptr) {
        memory[thread] = std::make_unique<BackwardMemory>(params, gradients, most, 1, 1);
      }
      run(item, *memory[thread]);
    });
  } else {
    BackwardMemory memory(params, gradients, most, plan.threads, plan.slab);
    for (std::int64_t item = 0; item < count; ++item) run(item, memory);
  }
}

std::size_t WorkspaceBytes(const Context& context, const AttentionParams& params, bool backward) {
  const Most most = MostOfAll(params);
  const auto threads = static_cast<std::size_t>(Threads(context));
  const auto rows = static_cast<std::size_t>(params.q_len / 6 + 2 * params.batch);
  const std::size_t tables = TableBytes(params);
  const std::size_t group = GroupBuffers::Bytes(params, most.keys, backward);
  const std::size_t thread = Thread::Bytes(params, most, backward) + sizeof(Thread);
  if (!backward) {
    return threads * (thread + group) + tables +
           static_cast<std::size_t>(params.heads) * rows * 2 * sizeof(RowBlock);
  }
  // Sums in floats unless the caller's arrays can hold them, which this does not know.
  const auto sums =
      static_cast<std::size_t>(most.rows * (Padded(params.head_dim) + Padded(params.value_dim)));
  // With a bias whose gradient sums over queries, threads take key heads however long the keys are.
  const bool across =
      params.terms.bias.data != nullptr || sums <= static_cast<std::size_t>(4 * kCacheFloats);
  return threads * (thread + 2 * group) + (across ? threads : 1) * sums * sizeof(float) + tables;
}

}  // namespace
}  // namespace dense

constinit const AttentionKernel kDenseAttention = {
    .name = "dense",
    .summary =
        "float32, bfloat16 and float16 in float32 arithmetic: every map, mask, term (a sink too) "
        "and shape",
    .instruction_set = [] { return std::string(dense::ChooseVectorCode().target); },
    .serves = {.features = Features::All().Without({Feature::kFloat64})},
    .declines = nullptr,
    .leaves = nullptr,
    .forward = dense::Forward,
    .backward = dense::Backward,
    .weights = dense::Weights,
    .saved_bytes = nullptr,
    .workspace_bytes = dense::WorkspaceBytes};

}  // namespace tsallis
