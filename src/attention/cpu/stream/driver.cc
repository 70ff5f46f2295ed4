// Driver of the streaming kernel: packs the keys of a head, then runs its query blocks on all
// threads.
#include <algorithm>
#include <atomic>
#include <memory>
#include <tuple>
#include <vector>

#include "attention/cpu/key_heads.h"
#include "attention/cpu/matrix_unit.h"
#include "attention/cpu/stream/stream.h"
#include "core/memory.h"
#include "core/parallel.h"

namespace tsallis::stream {
namespace {

constexpr std::int64_t kPackKeys = 2048;  // of a packing task

// One key head's backward pass.
struct KeyHeadMemory {
  GrowingBuffer<std::byte> packed, operands;
  GrowingBuffer<float> dk, dv, dq, dc;
  GrowingBuffer<float> rows;
  std::vector<WaveBlock> blocks;
};

class Driver {
 public:
  Driver(Engine engine, const Context& context, const AttentionParams& params)
      : functions_(GetFunctions(engine)),
        engine_(engine),
        rows_(ShapeOf(engine).rows),
        context_(context),
        params_(params),
        widths_(params),
        call_{.params = params, .distances = DistanceTable(params)} {
    for (int worker = 0; worker < Threads(context); ++worker) {
      scratch_.push_back(std::make_unique<Scratch>(engine, params));
    }
  }

  void Forward(const AttentionOutputs& outputs, const std::vector<RowBlock>& rows,
               std::vector<RowBlock>* remaining);
  void Backward(const AttentionGradients& gradients, const std::vector<KeyHead>& key_heads,
                HeadSums* heads, std::vector<KeyHead>* remaining);

 private:
  // Runs body(task, scratch) with a worker's scratch and tiles. Inside of a task of worker `outer`
  // everything is that worker's.
  template <class Body>
  void Tasks(const Context& context, int outer, std::int64_t count, const Body& body) {
    ParallelTasks(context, count, [&](std::int64_t task, int inner) {
#if defined(__x86_64__)
      const MatrixUnitSession session(engine_ == Engine::kTiles);
#endif
      const int worker = outer + inner;
      body(task, *scratch_[static_cast<std::size_t>(worker)]);
    });
  }
  PackedKv Head(const KeyHead& key_head) const {
    PackedKv head;
    head.sequence = Sequence::Of(params_, key_head.b);
    head.kv = key_head.kv;
    head.keys = head.sequence.k.size();
    return head;
  }
  void Pack(const Context& context, int outer, std::vector<PackedKv>& heads,
            GrowingBuffer<std::byte>& memory, bool backward);
  bool BackwardKeyHead(const Context& context, int outer, const KeyHead& key_head,
                       KeyHeadMemory& memory, HeadSums* sums);
  bool BackwardWave(const Context& context, int outer, const PackedKv& head, std::int64_t h,
                    std::int64_t q_begin, KeyHeadMemory& memory, double* d_slope);
  void PointBlocks(KeyHeadMemory& memory) const;
  bool IsSharp(const Context& context, int outer, const PackedKv& head);

  const Functions functions_;
  const Engine engine_;
  const std::int64_t rows_;  // of a block
  const Context context_;
  const AttentionParams& params_;
  const Widths widths_;
  StreamCall call_;
  std::vector<std::unique_ptr<Scratch>> scratch_;
};

void Driver::Pack(const Context& context, int outer, std::vector<PackedKv>& heads,
                  GrowingBuffer<std::byte>& memory, bool backward) {
  std::int64_t bytes = 0;
  struct Task {
    std::size_t head;
    std::int64_t begin;
    float k_bound = 0.0f, v_bound = 0.0f;
  };
  std::vector<Task> tasks;
  for (std::size_t i = 0; i < heads.size(); ++i) {
    bytes += PackedSizes(engine_, params_, heads[i].keys, backward).All();
    for (std::int64_t begin = 0; begin < heads[i].keys; begin += kPackKeys) {
      tasks.push_back({i, begin});
    }
  }
  std::byte* at = memory.Reserve(bytes);
  for (PackedKv& head : heads) {
    const PackedSizes sizes(engine_, params_, head.keys, backward);
    head.k_rows = at;
    head.v_columns = head.k_rows + sizes.k_rows;
    head.v_rows = head.v_columns + sizes.v_columns;
    head.k_columns = head.v_rows + sizes.v_rows;
    at += sizes.All();
  }
  Tasks(context, outer, static_cast<std::int64_t>(tasks.size()), [&](std::int64_t i, Scratch&) {
    Task& task = tasks[static_cast<std::size_t>(i)];
    const PackedKv& head = heads[task.head];
    functions_.pack(params_, head, task.begin,
                    std::min(task.begin + kPackKeys, RoundUp(head.keys, kDepth)), backward,
                    &task.k_bound, &task.v_bound);
  });
  for (const Task& task : tasks) {
    RaiseBound(&heads[task.head].k_bound, task.k_bound);
    RaiseBound(&heads[task.head].v_bound, task.v_bound);
  }
}

void Driver::Forward(const AttentionOutputs& outputs, const std::vector<RowBlock>& rows,
                     std::vector<RowBlock>* remaining) {
  call_.outputs = &outputs;
  if (params_.map != RowMap::kEntmax) {
    call_.saved = SavedValues::Create(params_, outputs.saved, outputs.saved_bytes);
  }
  GrowingBuffer<std::byte> memory;
  for (auto next = rows.begin(); next != rows.end();) {
    struct Task {
      std::size_t head;
      std::int64_t h, q_begin, count, cost;
    };
    std::vector<PackedKv> heads;
    std::vector<Task> tasks;
    std::int64_t bytes = 0;
    for (; next != rows.end(); ++next) {
      const KeyHead key_head{next->b, KvHead(params_, next->h)};
      if (heads.empty() || heads.back().sequence.batch != key_head.b ||
          heads.back().kv != key_head.kv) {
        if (!heads.empty() && bytes >= kPackedBytes) break;
        heads.push_back(Head(key_head));
        bytes += PackedSizes(engine_, params_, heads.back().keys, false).All();
      }
      const Sequence& sequence = heads.back().sequence;
      for (std::int64_t q = next->q.begin; q < next->q.end; q += rows_) {
        const std::int64_t count = std::min(rows_, next->q.end - q);
        tasks.push_back({heads.size() - 1, next->h, q, count,
                         sequence.VisibleKeys(params_.mask, q + count - 1).size()});
      }
    }
    Pack(context_, 0, heads, memory, /*backward=*/false);
    // Head by head, whose keys then stay in the second-level cache; the long ones first, so that
    // threads end together.
    std::stable_sort(tasks.begin(), tasks.end(), [](const Task& a, const Task& b) {
      return a.head != b.head ? a.head < b.head : a.cost > b.cost;
    });
    std::vector<std::uint8_t> unsafe(tasks.size(), 0);
    Tasks(context_, 0, static_cast<std::int64_t>(tasks.size()),
          [&](std::int64_t i, Scratch& scratch) {
            const Task& task = tasks[static_cast<std::size_t>(i)];
            const bool done = functions_.forward(call_, heads[task.head], task.h, task.q_begin,
                                                 task.count, scratch);
            unsafe[static_cast<std::size_t>(i)] = done ? 0 : 1;
          });
    // Neighbouring blocks in one, since the dense kernel's have another size.
    std::vector<RowBlock> left;
    for (std::size_t i = 0; i < tasks.size(); ++i) {
      const Task& task = tasks[i];
      if (unsafe[i] == 0) continue;
      left.push_back(
          {heads[task.head].sequence.batch, task.h, {task.q_begin, task.q_begin + task.count}});
    }
    std::sort(left.begin(), left.end(), [](const RowBlock& a, const RowBlock& b) {
      return std::tie(a.b, a.h, a.q.begin) < std::tie(b.b, b.h, b.q.begin);
    });
    const std::size_t before = remaining->size();
    for (const RowBlock& block : left) {
      const bool joins = remaining->size() > before && remaining->back().b == block.b &&
                         remaining->back().h == block.h && remaining->back().q.end == block.q.begin;
      if (joins) {
        remaining->back().q.end = block.q.end;
      } else {
        remaining->push_back(block);
      }
    }
  }
}

void Driver::PointBlocks(KeyHeadMemory& memory) const {
  const WaveSizes sizes(engine_, params_);
  std::byte* at = memory.operands.Reserve(sizes.blocks * sizes.All());
  float* rows = memory.rows.Reserve(sizes.blocks * kRowNumbers * rows_);
  memory.blocks.resize(static_cast<std::size_t>(sizes.blocks));
  for (WaveBlock& block : memory.blocks) {
    const auto take = [&](std::int64_t bytes) {
      std::byte* part = at;
      at += bytes;
      return part;
    };
    block.q_columns = take(sizes.q_columns);
    block.d_out_columns = take(sizes.d_out_columns);
    block.q_rows = take(sizes.q_rows);
    block.d_out_rows = take(sizes.d_out_rows);
    block.tau = rows;
    block.mean = rows + 2 * rows_;
    block.beta = rows + 3 * rows_;
    block.soft_tau = rows + 4 * rows_;
    block.soft_mean = rows + 6 * rows_;
    block.through_entropy = rows + 7 * rows_;
    rows += kRowNumbers * rows_;
  }
}

// False: something might not be finite.
bool Driver::BackwardWave(const Context& context, int outer, const PackedKv& head, std::int64_t h,
                          std::int64_t q_begin, KeyHeadMemory& memory, double* d_slope) {
  const Sequence& sequence = head.sequence;
  const AttentionGradients& gradients = *call_.gradients;
  const std::int64_t q_end = std::min(q_begin + kWaveRows, sequence.q.end);
  const std::int64_t blocks = (q_end - q_begin + rows_ - 1) / rows_;
  const auto rows_of = [&](std::int64_t block) {
    const std::int64_t begin = q_begin + block * rows_;
    return Span{begin, std::min(begin + rows_, q_end)};
  };
  std::atomic<bool> safe = true;
  Tasks(context, outer, blocks, [&](std::int64_t i, Scratch& scratch) {
    const Span rows = rows_of(i);
    if (!functions_.prepare(call_, head, h, rows.begin, rows.size(), scratch,
                            memory.blocks[static_cast<std::size_t>(i)])) {
      safe = false;
    }
  });
  if (!safe) return false;
  // The ranges that the wave sees; both ends of what a query sees rise with it.
  const std::int64_t range = RangeKeys(head.keys);
  Span seen = {head.keys, 0};
  for (std::int64_t row = q_begin; row < q_end; ++row) {
    const Span span = sequence.VisibleKeys(params_.mask, row);
    if (span.size() == 0) continue;
    seen.begin = std::min(seen.begin, span.begin - sequence.k.begin);
    seen.end = std::max(seen.end, span.end - sequence.k.begin);
  }
  const std::int64_t first = seen.size() == 0 ? 0 : seen.begin / range;
  const std::int64_t ranges = seen.size() == 0 ? 0 : (seen.end + range - 1) / range - first;
  const bool wants_dq = gradients.dq.data != nullptr,
             wants_dc = gradients.d_length_scale != nullptr;
  const std::int64_t block_floats = rows_ * widths_.d_padded, stride = blocks * block_floats;
  float* dq = wants_dq ? memory.dq.Reserve(ranges * stride) : nullptr;
  float* dc = wants_dc ? memory.dc.Reserve(ranges * blocks * rows_) : nullptr;
  float* dk = gradients.dk.data != nullptr ? memory.dk.get() : nullptr;
  float* dv = gradients.dv.data != nullptr ? memory.dv.get() : nullptr;
  std::vector<double> slopes(static_cast<std::size_t>(ranges), 0.0);
  Tasks(context, outer, ranges, [&](std::int64_t i, Scratch& scratch) {
    float* sums = wants_dq ? dq + i * stride : nullptr;
    if (wants_dq) std::fill_n(sums, stride, 0.0f);
    for (std::int64_t block = 0; block < blocks; ++block) {
      const Span rows = rows_of(block);
      slopes[static_cast<std::size_t>(i)] += functions_.gradients(
          call_, head, h, rows.begin, rows.size(), (first + i) * range, (first + i + 1) * range,
          scratch, memory.blocks[static_cast<std::size_t>(block)], dk, dv,
          wants_dq ? sums + block * block_floats : nullptr,
          wants_dc ? dc + (i * blocks + block) * rows_ : nullptr);
    }
  });
  for (const double slope : slopes) *d_slope += slope;
  const double scale = ScaleOf(params_);
  for (std::int64_t row = q_begin; wants_dc && row < q_end; ++row) {
    double sum = 0.0;
    for (std::int64_t i = 0; i < ranges; ++i) sum += dc[i * blocks * rows_ + row - q_begin];
    gradients.d_length_scale[RowIndex(params_, sequence, h, row)] = scale * sum;
  }
  if (!wants_dq) return true;
  Tasks(context, outer, blocks, [&](std::int64_t i, Scratch& scratch) {
    const Span rows = rows_of(i);
    functions_.finish(call_, head, h, rows.begin, rows.size(), scratch, dq + i * block_floats,
                      ranges, stride);
  });
  return true;
}

// Whether a head of adaptive temperature has too few keys to beat the dense kernel if its rows are
// sharpened, and they are: those in the middle tell.
bool Driver::IsSharp(const Context& context, int outer, const PackedKv& head) {
  if (params_.map != RowMap::kAdaptiveTemperature || !OnVectors(engine_) ||
      head.keys >= DenseKeys(engine_)) {
    return false;
  }
  const std::int64_t group = params_.heads / params_.kv_heads;
  const std::int64_t middle = head.sequence.q.begin + head.sequence.q.size() / 2;
  const std::int64_t count = std::min(rows_, head.sequence.q.end - middle);
  std::atomic<std::int64_t> blunt = 0;
  Tasks(context, outer, group, [&](std::int64_t i, Scratch& scratch) {
    blunt += functions_.looks_blunt(call_, head, head.kv * group + i, middle, count, scratch);
  });
  return 2 * blunt < group;
}

bool Driver::BackwardKeyHead(const Context& context, int outer, const KeyHead& key_head,
                             KeyHeadMemory& memory, HeadSums* head_sums) {
  std::vector<PackedKv> heads = {Head(key_head)};
  Pack(context, outer, heads, memory.packed, /*backward=*/true);
  const PackedKv& head = heads[0];
  if (IsSharp(context, outer, head)) return false;
  const AttentionGradients& gradients = *call_.gradients;
  PointBlocks(memory);
  const std::int64_t padded = RoundUp(head.keys, kDepth);
  const auto clear = [&](GrowingBuffer<float>& sums, std::int64_t columns) {
    std::fill_n(sums.Reserve(padded * columns), padded * columns, 0.0f);
  };
  if (gradients.dk.data != nullptr) clear(memory.dk, widths_.d_padded);
  if (gradients.dv.data != nullptr) clear(memory.dv, widths_.e_padded);
  const std::int64_t group = params_.heads / params_.kv_heads;
  for (std::int64_t h = head.kv * group; h < (head.kv + 1) * group; ++h) {
    for (std::int64_t row = head.sequence.q.begin; row < head.sequence.q.end; row += kWaveRows) {
      double* d_slope = &head_sums[head.sequence.batch * params_.heads + h].d_slope;
      if (!BackwardWave(context, outer, head, h, row, memory, d_slope)) return false;
    }
  }
  const auto store = [&](const MutableArray4& array, const GrowingBuffer<float>& sums,
                         std::int64_t columns) {
    if (array.data == nullptr) return;
    const std::int64_t width = Padded(columns);
    Tasks(context, outer, (head.keys + kRangeKeys - 1) / kRangeKeys, [&](std::int64_t i, Scratch&) {
      const std::int64_t begin = i * kRangeKeys;
      functions_.store(sums.get() + begin * width, width, std::min(kRangeKeys, head.keys - begin),
                       columns, array, head.sequence.array_batch, head.kv,
                       head.sequence.k.begin + begin);
    });
  };
  store(gradients.dk, memory.dk, params_.head_dim);
  store(gradients.dv, memory.dv, params_.value_dim);
  return true;
}

void Driver::Backward(const AttentionGradients& gradients, const std::vector<KeyHead>& key_heads,
                      HeadSums* heads, std::vector<KeyHead>* remaining) {
  call_.gradients = &gradients;
  call_.saved = SavedValues::Open(params_, gradients.saved, gradients.saved_bytes);
  call_.wants_scores = gradients.dq.data != nullptr || gradients.dk.data != nullptr ||
                       gradients.d_length_scale != nullptr || gradients.d_slopes != nullptr;
  ForEachKeyHead<KeyHeadMemory>(
      context_, 2, key_heads, remaining,
      [&](const Context& context, int worker, const KeyHead& key_head, KeyHeadMemory& memory) {
        return BackwardKeyHead(context, worker, key_head, memory, heads);
      });
}

}  // namespace

void Forward(Engine engine, const Context& context, const AttentionParams& params,
             const AttentionOutputs& outputs, const std::vector<RowBlock>& rows,
             std::vector<RowBlock>* remaining) {
  Driver(engine, context, params).Forward(outputs, rows, remaining);
}

void Backward(Engine engine, const Context& context, const AttentionParams& params,
              const AttentionGradients& gradients, const std::vector<KeyHead>& key_heads,
              HeadSums* heads, std::vector<KeyHead>* remaining) {
  Driver(engine, context, params).Backward(gradients, key_heads, heads, remaining);
}

}  // namespace tsallis::stream
