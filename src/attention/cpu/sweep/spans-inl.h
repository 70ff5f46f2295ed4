// The order in which a block's lists gather keys and values. Included once per instruction set.
#if defined(TSALLIS_ATTENTION_CPU_SWEEP_SPANS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TSALLIS_ATTENTION_CPU_SWEEP_SPANS_INL_H_
#undef TSALLIS_ATTENTION_CPU_SWEEP_SPANS_INL_H_
#else
#define TSALLIS_ATTENTION_CPU_SWEEP_SPANS_INL_H_
#endif

#include <algorithm>

#include "attention/cpu/sweep/sweep.h"

HWY_BEFORE_NAMESPACE();
namespace tsallis {
namespace HWY_NAMESPACE {

// Bytes of keys or values that stay in the second-level cache while a block's rows gather them.
constexpr std::int64_t kPanelBytes = std::int64_t{256} << 10;
// Entries for each key from which on a block gathers panel by panel: with fewer, a key that one row
// brings into the cache is rarely wanted by another.
constexpr std::int64_t kSharedEntries = 2;

// Whether so many entries of a block meet at the same keys of a head.
HWY_INLINE bool ShareKeys(std::int64_t entries, std::int64_t keys) {
  return entries >= kSharedEntries * keys;
}

// The keys of some of a block's rows, ascending, of which parts are gathered at a time.
class KeySpans {
 public:
  // keys: [entries] of row r.
  void Add(std::int64_t r, const std::uint32_t* keys, std::size_t entries) {
    lists_[rows_++] = {keys, r, static_cast<std::int64_t>(entries)};
  }

  // Calls work(r, begin, end) for parts of the lists, which follow each other in every list and
  // begin at even entries. Where keys are shared, those of a panel are gathered for all rows before
  // those of the next: one row after the other, each fetched its keys from beyond the second-level
  // cache. keys: of the head; bytes: that are gathered of a key.
  template <class Work>
  void ForEach(bool shared, std::int64_t keys, std::int64_t bytes, const Work& work) const {
    std::int64_t from[kBlockRows];
    std::fill_n(from, rows_, std::int64_t{0});
    const std::int64_t panel = shared ? HWY_MAX(kPanelBytes / bytes, kTileKeys) : keys;
    bool more = true;
    for (std::int64_t limit = panel; more; limit += panel) {
      more = false;
      for (std::size_t i = 0; i < rows_; ++i) {
        const List& list = lists_[i];
        const std::int64_t begin = from[i];
        if (begin >= list.entries) continue;
        from[i] = shared ? EndBelow(list, begin, limit) : list.entries;
        if (from[i] > begin) work(list.row, begin, from[i]);
        more = more || from[i] < list.entries;
      }
    }
  }

 private:
  struct List {
    const std::uint32_t* keys;
    std::int64_t row, entries;
  };
  // The first entry from `begin` on whose key is not below the limit, or the one before.
  static std::int64_t EndBelow(const List& list, std::int64_t begin, std::int64_t limit) {
    constexpr std::int64_t kStride = 16;
    std::int64_t end = begin;
    while (end + kStride <= list.entries && list.keys[end + kStride - 1] < limit) end += kStride;
    while (end < list.entries && list.keys[end] < limit) ++end;
    return end < list.entries ? end & ~std::int64_t{1} : end;
  }

  List lists_[kBlockRows];
  std::size_t rows_ = 0;
};

}  // namespace HWY_NAMESPACE
}  // namespace tsallis
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
