// Tables of distances, kept between calls: a model that writes asks for the same one in every layer
// of every token, and 65 536 logarithms take as long as the attention itself (docs/log.md).
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "attention/terms.h"

namespace tsallis {
namespace {

// The largest |i - j| of a visible key, and more.
std::int64_t ReachOf(const AttentionParams& params) {
  const AttentionMask& mask = params.mask;
  std::int64_t behind = 0, ahead = 0;
  for (std::int64_t b = 0; b < params.batch; ++b) {
    const Sequence sequence = Sequence::Of(params, b);
    if (sequence.q.size() == 0 || sequence.k.size() == 0) continue;
    behind = std::max(behind, sequence.Distance(sequence.q.end - 1, sequence.k.begin));
    ahead = std::max(ahead, -sequence.Distance(sequence.q.begin, sequence.k.end - 1));
  }
  if (mask.causal) ahead = 0;
  if (mask.right >= 0) ahead = std::min(ahead, mask.right);
  if (mask.left >= 0) behind = std::min(behind, mask.left);
  return std::max(behind, ahead) + DistanceTable::kBeyond;
}

// Contexts grow by a token: a new table is needed for every eighth of the length.
std::int64_t RoomFor(std::int64_t reach) { return reach + reach / 8; }

std::size_t BytesFor(std::int64_t reach) {
  return 2 * sizeof(float) * static_cast<std::size_t>(2 * reach + 1);
}

}  // namespace

struct DistanceTable::Entries {
  Entries(const DistanceLaw& of, std::int64_t room)
      : law(of), reach(room), a(static_cast<std::size_t>(2 * room + 1)), m(a.size()) {
    for (std::int64_t distance = 0; distance <= reach; ++distance) {
      const DistanceFactor factor = DistanceFactor::At(law, distance);
      for (const std::int64_t at : {reach - distance, reach + distance}) {
        a[static_cast<std::size_t>(at)] = static_cast<float>(factor.a);
        m[static_cast<std::size_t>(at)] = static_cast<float>(factor.m);
      }
    }
  }
  DistanceLaw law;
  std::int64_t reach;
  std::vector<float> a, m;
};

namespace {

// The tables that were asked for last, newest first.
class Kept {
 public:
  static Kept& Shared() {
    static Kept shared;
    return shared;
  }
  // Null: none that reaches so far.
  std::shared_ptr<const DistanceTable::Entries> Find(const DistanceLaw& law, std::int64_t reach) {
    const std::lock_guard lock(mutex_);
    const auto found = std::find_if(tables_.begin(), tables_.end(), [&](const auto& table) {
      return table->law == law && table->reach >= reach;
    });
    if (found == tables_.end()) return nullptr;
    std::rotate(tables_.begin(), found, found + 1);
    return tables_.front();
  }
  // In place of shorter ones of the same law.
  void Add(std::shared_ptr<const DistanceTable::Entries> table) {
    if (BytesFor(table->reach) > kMostBytes) return;
    const std::lock_guard lock(mutex_);
    std::erase_if(tables_, [&](const auto& other) { return other->law == table->law; });
    tables_.insert(tables_.begin(), std::move(table));
    if (tables_.size() > kMost) tables_.pop_back();
  }

 private:
  static constexpr std::size_t kMost = 4, kMostBytes = std::size_t{32} << 20;  // of a table

  std::mutex mutex_;
  std::vector<std::shared_ptr<const DistanceTable::Entries>> tables_;
};

}  // namespace

DistanceTable::DistanceTable(const AttentionParams& params) {
  if (params.terms.scale_invariant == 0.0) return;
  const DistanceLaw law = DistanceLaw::Of(params.terms);
  const std::int64_t reach = ReachOf(params);
  entries_ = Kept::Shared().Find(law, reach);
  if (entries_ == nullptr) {
    entries_ = std::make_shared<const Entries>(law, RoomFor(reach));
    Kept::Shared().Add(entries_);
  }
  const float* a_of_0 = entries_->a.data() + entries_->reach;
  // Entries beyond the call's own reach tell it nothing.
  factors_ = {a_of_0, entries_->m.data() + entries_->reach, law.sum,
              static_cast<double>(a_of_0[reach])};
}

std::size_t DistanceTable::Bytes(const AttentionParams& params) {
  return params.terms.scale_invariant == 0.0 ? 0 : BytesFor(RoomFor(ReachOf(params)));
}

}  // namespace tsallis
