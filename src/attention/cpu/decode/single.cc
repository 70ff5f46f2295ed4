// Decoding as a kernel of the list: calls of few queries a sequence.
#include <algorithm>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "attention/cpu/decode/decode.h"
#include "attention/kernels.h"
#include "core/parallel.h"
#include "core/target.h"

namespace tsallis {
namespace {

using decode::Answer;
using decode::Padded;

// One query row of neighbouring query heads that share a key head.
struct Item {
  std::int64_t b, h, count, row;
  std::int64_t work;  // keys that the heads see
};

std::vector<Item> ItemsOf(const AttentionParams& params, const std::vector<RowBlock>& rows) {
  std::vector<Item> items;
  for (std::size_t i = 0; i < rows.size();) {
    const RowBlock& first = rows[i];
    std::size_t end = i + 1;
    while (end < rows.size() && static_cast<std::int64_t>(end - i) < decode::kRows &&
           rows[end].b == first.b && rows[end].h == rows[end - 1].h + 1 &&
           KvHead(params, rows[end].h) == KvHead(params, first.h) &&
           rows[end].q.begin == first.q.begin && rows[end].q.end == first.q.end) {
      ++end;
    }
    const Sequence sequence = Sequence::Of(params, first.b);
    const auto count = static_cast<std::int64_t>(end - i);
    for (std::int64_t row = first.q.begin; row < first.q.end; ++row) {
      const std::int64_t keys = sequence.VisibleKeys(params.mask, row).size();
      items.push_back({first.b, first.h, count, row, count * keys});
    }
    i = end;
  }
  return items;
}

// Sorts the items, those with most work first, and returns the number of those whose keys all
// threads share: one that is more than a thread's part of the work, which the others would wait
// for, and all where there are few.
std::int64_t SortByWork(int threads, std::vector<Item>& items) {
  const auto count = static_cast<std::int64_t>(items.size());
  std::int64_t rest = 0, shared = 0;
  for (const Item& item : items) rest += item.work;
  std::ranges::stable_sort(items, std::ranges::greater(), &Item::work);
  while (shared < count && (count - shared < 2 * threads ||
                            items[static_cast<std::size_t>(shared)].work * threads > rest)) {
    rest -= items[static_cast<std::size_t>(shared++)].work;
  }
  return shared;
}

struct Worker {
  decode::Scratch scratch;
  GrowingBuffer<float> q, out;
  std::vector<RowBlock> remaining;
};

// Workers between calls. A token is many short calls, one a layer, and memory that is given back
// after each comes anew with a page fault every 4 KB: 0.03 to 0.1 ms a call (docs/log.md).
class Idle {
 public:
  static Idle& Shared() {
    static Idle shared;
    return shared;
  }
  std::unique_ptr<Worker> Take() {
    const std::lock_guard lock(mutex_);
    if (workers_.empty()) return std::make_unique<Worker>();
    std::unique_ptr<Worker> worker = std::move(workers_.back());
    workers_.pop_back();
    bytes_ -= worker->scratch.bytes_held();
    return worker;
  }
  // Keeps it unless all would hold more than kMostBytes then.
  void Give(std::unique_ptr<Worker> worker) {
    const std::lock_guard lock(mutex_);
    const std::size_t bytes = worker->scratch.bytes_held();
    if (bytes_ + bytes > kMostBytes) return;
    worker->remaining.clear();
    bytes_ += bytes;
    workers_.push_back(std::move(worker));
  }

 private:
  static constexpr std::size_t kMostBytes = std::size_t{32} << 20;

  std::mutex mutex_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::size_t bytes_ = 0;
};

class Driver {
 public:
  Driver(const AttentionParams& params, const decode::Screens& screens,
         const AttentionOutputs& outputs, const decode::Account& account)
      : functions_(decode::GetFunctions()),
        params_(params),
        screens_(screens),
        outputs_(outputs),
        account_(account),
        distances_(params) {}

  // Adds the rows that it leaves to `remaining`, unless that is null.
  void Run(const Context& context, const Item& item, Worker& worker,
           std::vector<RowBlock>* remaining) const {
    const Sequence sequence = Sequence::Of(params_, item.b);
    const std::int64_t batch = sequence.array_batch, kv = KvHead(params_, item.h);
    const HeadRows keys = KeyRows(params_, sequence, kv), values = ValueRows(params_, sequence, kv);
    const std::int64_t padded = Padded(params_.head_dim);
    float* q = worker.q.Reserve(decode::kRows * padded);
    float* out = worker.out.Reserve(decode::kRows * (params_.value_dim + 16));
    decode::Query query{.keys = &keys,
                        .values = &values,
                        .visible = sequence.VisibleKeys(params_.mask, item.row),
                        .position = item.row + sequence.shift,
                        .byte_offset = At(screens_.byte_offset, screens_.byte_head, kv),
                        .range_offset = At(screens_.range_offset, screens_.fact_head, kv),
                        .moment_offset = At(screens_.moment_offset, screens_.fact_head, kv),
                        .mode = account_.mode,
                        .wants_entropy = outputs_.entropy != nullptr,
                        .wants_certificate = account_.certificate != nullptr,
                        .wants_lost = account_.lost != nullptr,
                        .rows = item.count,
                        .head_dim = params_.head_dim,
                        .value_dim = params_.value_dim,
                        .q = q};
    if (screens_.bytes()) query.byte_pages = screens_.byte_tables[item.b];
    if (screens_.key_norms != nullptr) {
      query.key_norm = screens_.key_norms[item.b][screens_.norm_first + kv * screens_.norm_step];
    }
    Answer answers[decode::kRows];
    for (std::int64_t r = 0; r < item.count; ++r) {
      const std::int64_t h = item.h + r;
      functions_.load(HeadRows::Of(params_.q, batch, h), item.row, params_.head_dim,
                      q + r * padded);
      std::fill(q + r * padded + params_.head_dim, q + (r + 1) * padded, 0.0f);
      query.factor[r] = RowFactor(params_, sequence, h, item.row);
      query.terms[r] = HeadTerms::Of(params_, sequence, h, distances_, 1.0);
      query.map[r].alpha = params_.map == RowMap::kSoftmax ? 1.0 : AlphaOf(params_, h);
      if (params_.terms.sink != nullptr) query.map[r].sink = params_.terms.sink[h];
      answers[r].out = out + r * (params_.value_dim + 16);
    }
    decode::Attend(functions_, context, query, worker.scratch, answers);
    for (std::int64_t r = 0; r < item.count; ++r) {
      const std::int64_t h = item.h + r;
      // A backward pass by another kernel must find the threshold of scores like its own.
      if (answers[r].rounding_decides && remaining != nullptr) {
        remaining->push_back({item.b, h, {item.row, item.row + 1}});
        continue;
      }
      functions_.store(answers[r].out, outputs_.out,
                       Offset(outputs_.out.strides, batch, h, item.row), params_.value_dim);
      const std::int64_t index = RowIndex(params_, sequence, h, item.row);
      if (outputs_.tau != nullptr) outputs_.tau[index] = answers[r].tau;
      if (outputs_.support_size != nullptr) outputs_.support_size[index] = answers[r].support;
      if (outputs_.entropy != nullptr) outputs_.entropy[index] = answers[r].entropy;
      if (outputs_.maximum != nullptr) outputs_.maximum[index] = answers[r].maximum;
      if (account_.certificate != nullptr) account_.certificate[index] = answers[r].certificate;
      if (account_.lost != nullptr) account_.lost[index] = answers[r].lost;
      if (account_.scored != nullptr) account_.scored[index] = answers[r].scored;
      if (account_.bytes_read != nullptr) account_.bytes_read[index] = answers[r].bytes_read;
    }
  }

 private:
  // The offset for key head `kv`; -1: none.
  static std::int64_t At(std::int64_t offset, std::int64_t head, std::int64_t kv) {
    return offset < 0 ? -1 : offset + kv * head;
  }

  decode::Functions functions_;
  const AttentionParams& params_;
  const decode::Screens& screens_;
  const AttentionOutputs& outputs_;
  const decode::Account& account_;
  DistanceTable distances_;
};

}  // namespace

namespace decode {

std::int64_t MostQueries(const AttentionParams& params, bool bytes, std::int64_t keys) {
  constexpr std::int64_t kKeysOfEach = 128;
  bool screened = bytes && params.map == RowMap::kEntmax && GetFunctions().fast_bounds;
  // Softmax has no use for bytes.
  for (std::int64_t h = 0; h < params.heads; ++h) screened = screened && AlphaOf(params, h) != 1.0;
  return std::clamp<std::int64_t>(keys / kKeysOfEach, 1, screened ? 64 : 8);
}

void Forward(const Context& context, const AttentionParams& params, const Screens& screens,
             const AttentionOutputs& outputs, const Account& account,
             const std::vector<RowBlock>& rows, std::vector<RowBlock>* remaining) {
  std::vector<Item> items = ItemsOf(params, rows);
  const Driver driver(params, screens, outputs, account);
  const std::int64_t shared = SortByWork(Threads(context), items);
  const std::int64_t apart = static_cast<std::int64_t>(items.size()) - shared;
  std::vector<std::unique_ptr<Worker>> workers(
      static_cast<std::size_t>(std::max(Workers(context, apart), 1)));
  for (std::unique_ptr<Worker>& worker : workers) worker = Idle::Shared().Take();
  const auto run = [&](const Context& own, std::int64_t i, Worker& worker) {
    driver.Run(own, items[static_cast<std::size_t>(i)], worker,
               remaining != nullptr ? &worker.remaining : nullptr);
  };
  for (std::int64_t i = 0; i < shared; ++i) run(context, i, *workers.front());
  ParallelTasks(context, apart, [&](std::int64_t i, int worker) {
    run({.threads = 1}, shared + i, *workers[static_cast<std::size_t>(worker)]);
  });
  for (std::unique_ptr<Worker>& worker : workers) {
    if (remaining != nullptr)
      remaining->insert(remaining->end(), worker->remaining.begin(), worker->remaining.end());
    Idle::Shared().Give(std::move(worker));
  }
}

}  // namespace decode

namespace {

std::string Declines(const AttentionParams& params, bool) {
  const std::int64_t most = decode::MostQueries(params, /*bytes=*/false, MostKeys(params));
  for (std::int64_t b = 0; b < params.batch; ++b) {
    if (Sequence::Of(params, b).q.size() > most) return "many queries a sequence, or few keys";
  }
  return {};
}

std::size_t WorkspaceBytes(const Context& context, const AttentionParams& params, bool) {
  const auto threads = static_cast<std::size_t>(Threads(context));
  const auto rows = std::min<std::int64_t>(decode::kRows, params.heads);
  const auto floats = decode::kRows * (Padded(params.head_dim) + params.value_dim + 16);
  return threads * (decode::Scratch::Bytes(rows, MostKeys(params), params.value_dim) +
                    static_cast<std::size_t>(floats) * sizeof(float)) +
         DistanceTable::Bytes(params) +
         static_cast<std::size_t>(params.batch * params.heads * params.q_len) * sizeof(Item);
}

}  // namespace

constinit const AttentionKernel kDecodeAttention = {
    .name = "decode",
    .summary = "few queries a sequence: keys are read once for all heads that share them",
    .instruction_set = [] { return std::string(TargetInUse()); },
    .serves = {.features = (kCommonFeatures | Features{Feature::kFloat32, Feature::kBFloat16,
                                                       Feature::kFloat16, Feature::kSoftmax,
                                                       Feature::kEntmax, Feature::kSink})
                               .Without({Feature::kGradients}),
               .forward_only = Features::All(),
               .least_alpha = decode::kLeastAlpha,
               .most_alpha = decode::kMostAlpha,
               .most_keys = std::int64_t{1} << 31},
    .declines = Declines,
    .leaves = "scores of 2^24 and more",
    .forward =
        [](const Context& context, const AttentionParams& params, const AttentionOutputs& outputs,
           const std::vector<RowBlock>& rows, std::vector<RowBlock>* remaining) {
          decode::Forward(context, params, {}, outputs, {}, rows, remaining);
        },
    .backward = nullptr,
    .weights = nullptr,
    .saved_bytes = nullptr,
    .workspace_bytes = WorkspaceBytes};

}  // namespace tsallis
