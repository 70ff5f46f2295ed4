// The list of a row, in shared memory or in device memory, and its threshold.
#pragma once

#include <cmath>
#include <cstdint>

#include "attention/cuda/call.h"

namespace tsallis::cuda {
inline namespace TSALLIS_SIDE {

// Relative errors that a bound allows for: of z as float32, and of a solution.
inline constexpr float kScoreSlack = 4e-6f, kSolveSlack = 1e-5f;

// A threshold as its distance below another z: tau = from - top. `from` is the largest z, or, of
// bounds, the bound so far.
struct Threshold {
  float from = -kInfinity, top = 1.0f;
};

// A row's list in shared memory: entries of a value, z = unit * value, and a key. Its quad's lanes
// have a quarter each: place s belongs to lane s % 4, which fills its own one after the other, so
// that nothing is shared while keys pass. A lane's places lie kStride entries apart, so that each
// lane of a half warp has banks of its own. kMost: a lane's entries are at most so many.
template <int kStride, int kMost>
struct RowList {
  static constexpr bool kLong = false;
  // A bound need not be the threshold itself: Newton's method goes on if its last step was longer.
  // Usually one step is taken.
  static constexpr float kBoundStep = 0.1f;
  // Entries of a lane that are under way at once while `rows` lists are solved, and while a list is
  // written anew.
  static constexpr int SolvedAtOnce(int rows) { return rows > 1 ? 2 : 4; }
  static constexpr int kWrittenAtOnce = 1;

  int begin = 0;  // byte: a function that is not inlined sees that the memory is shared
  float unit = 1.0f;

  TSALLIS_DEVICE static int At(int place) {
    const auto at = static_cast<unsigned>(place);
    return static_cast<int>(at / 4 * kStride + at % 4);
  }
  // The place of the lane's entry i.
  TSALLIS_DEVICE static int OwnAt(int i) { return i * kStride + Lane() % 4; }
  TSALLIS_DEVICE Words2 Load(int at) const { return Entries().Load(at); }
  TSALLIS_DEVICE void Store(int at, float value, int key) const {
    StoreAt(begin + at * static_cast<int>(sizeof(Words2)), value, key);
  }
  // The lane's entry i, and the distance to the next.
  static constexpr int kStepBytes = kStride * static_cast<int>(sizeof(Words2));
  TSALLIS_DEVICE int ByteOf(int i) const {
    return begin + i * kStepBytes + Lane() % 4 * static_cast<int>(sizeof(Words2));
  }
  TSALLIS_DEVICE static void StoreAt(int byte, float value, int key) {
    Shared<Words2>(static_cast<std::size_t>(byte))
        .Store(0, Words2{{BitsOf(value), static_cast<std::uint32_t>(key)}});
  }
  // A word of the lane's entry i, and of the list's entry `place`: 0: the value, 1: the key.
  TSALLIS_DEVICE std::uint32_t Word(int i, int word) const {
    return Words().Load(2 * (i * kStride + Lane() % 4) + word);
  }
  TSALLIS_DEVICE void StoreWord(int place, int word, std::uint32_t bits) const {
    Words().Store(2 * At(place) + word, bits);
  }
  // z of the lane's entry i.
  TSALLIS_DEVICE float Z(int i) const { return unit * FloatOf(Word(i, 0)); }

 private:
  TSALLIS_DEVICE Shared<std::uint32_t> Words() const {
    return Shared<std::uint32_t>(static_cast<std::size_t>(begin));
  }
  TSALLIS_DEVICE Shared<Words2> Entries() const {
    return Shared<Words2>(static_cast<std::size_t>(begin));
  }
};

// A row's list in device memory, where there is room for more: as RowList, but the lanes of a warp
// have the values of an entry in 32 words side by side and its keys in the 32 words behind, since
// lists are solved without keys. A lane's places lie kStride words apart. Each read is a wait for
// the second cache, so many are under way at once.
template <int kStride>
struct LongList {
  static constexpr bool kLong = true;
  // The more entries a list has, the nearer to one another are their scores.
  static constexpr float kBoundStep = 0.03f;
  static constexpr int SolvedAtOnce(int rows) { return 16 / rows; }
  static constexpr int kWrittenAtOnce = 8;
  static constexpr int kStepBytes = kStride * static_cast<int>(sizeof(std::uint32_t));

  std::uint32_t* words = nullptr;
  float unit = 1.0f;

  TSALLIS_DEVICE static int At(int place) {
    const auto at = static_cast<unsigned>(place);
    return static_cast<int>(at / 4 * kStride + at % 4);
  }
  TSALLIS_DEVICE static int OwnAt(int i) { return i * kStride + Lane() % 4; }
  TSALLIS_DEVICE static int ByteOf(int i) {
    return OwnAt(i) * static_cast<int>(sizeof(std::uint32_t));
  }
  TSALLIS_DEVICE Words2 Load(int at) const {
    return {{LoadOfBlock(words + at), LoadOfBlock(words + at + kWarp)}};
  }
  TSALLIS_DEVICE void Store(int at, float value, int key) const {
    StoreOfBlock(words + at, BitsOf(value));
    StoreOfBlock(words + at + kWarp, static_cast<std::uint32_t>(key));
  }
  TSALLIS_DEVICE void StoreAt(int byte, float value, int key) const {
    Store(byte / static_cast<int>(sizeof(std::uint32_t)), value, key);
  }
  TSALLIS_DEVICE float Z(int i) const { return unit * FloatOf(LoadOfBlock(words + OwnAt(i))); }
};

// Lists of several of the lane's rows, gone through together: while one waits for memory or for
// the quad, another computes.
template <int kCount, class List>
struct RowLists {
  List list[kCount];
  int mine[kCount];     // entries that are the lane's
  float bound[kCount];  // a z that the threshold exceeds; -kMostFloat: none is known

  TSALLIS_DEVICE int MostOfLane() const {
    int most = mine[0];
    TSALLIS_UNROLL
    for (int r = 1; r < kCount; ++r) most = mine[r] > most ? mine[r] : most;
    return most;
  }
};

template <int kCount>
struct Thresholds {
  Threshold of[kCount];
};

// The thresholds of lists, by Newton's method from below, until a step is no longer than
// least_step; 0: until nothing moves. Each step's result lies below the threshold. Sums have one
// order. The warp calls it, each quad with its own lists. sink: one more z; -inf: none.
// from_bounds: all lists have bounds, and the thresholds' distances from these will do. A threshold
// that is not from a finite number: the list has none.
template <int kCount, class List>
TSALLIS_RARE Thresholds<kCount> SolveLists(const RowLists<kCount, List> lists, float sink,
                                           float alpha, float power, bool from_bounds,
                                           float least_step) {
  constexpr int kAtOnce = List::SolvedAtOnce(kCount);
  Thresholds<kCount> solved;
  const int most = lists.MostOfLane();
  const auto z_of = [&](int r, int i) {
    return i < lists.mine[r] ? lists.list[r].Z(i) : -kInfinity;
  };
  if (from_bounds) {
    TSALLIS_UNROLL
    for (int r = 0; r < kCount; ++r) solved.of[r] = {lists.bound[r], 0.0f};
  } else {
    TSALLIS_LOOP
    for (int i = 0; i < most; i += kAtOnce) {
      TSALLIS_UNROLL
      for (int k = 0; k < kAtOnce; ++k) {
        TSALLIS_UNROLL
        for (int r = 0; r < kCount; ++r) {
          solved.of[r].from = MaxOrNaN(solved.of[r].from, z_of(r, i + k));
        }
      }
    }
    TSALLIS_UNROLL
    for (int r = 0; r < kCount; ++r) {
      const float peak = MaxOrNaN(QuadMax(solved.of[r].from), sink);
      // A little more than the bound's distance, since both are rounded.
      const float start = (peak - lists.bound[r]) * 1.001f + 1e-5f * fabsf(peak);
      solved.of[r] = {peak, start < 1.0f ? start : 1.0f};
    }
  }
  // Sums of the weights and slopes. A guess may lie above the threshold. The first step leads from
  // there to below it, as from below it does.
  bool first = !from_bounds;
  const auto newton = [&](const auto& add) {
    for (bool moves = true; Any(moves);) {
      float sum[kCount] = {}, slope[kCount] = {};
      const auto add_to = [&](int r, float z) {
        add(fmaxf(solved.of[r].top - (solved.of[r].from - z), 0.0f), sum[r], slope[r]);
      };
      if (Lane() % 4 == 0) {
        TSALLIS_UNROLL
        for (int r = 0; r < kCount; ++r) add_to(r, sink);
      }
      TSALLIS_LOOP
      for (int i = 0; i < most; i += kAtOnce) {
        TSALLIS_UNROLL
        for (int k = 0; k < kAtOnce; ++k) {
          TSALLIS_UNROLL
          for (int r = 0; r < kCount; ++r) add_to(r, z_of(r, i + k));
        }
      }
      moves = false;
      TSALLIS_UNROLL
      for (int r = 0; r < kCount; ++r) {
        sum[r] = QuadSum(sum[r]);
        slope[r] = QuadSum(slope[r]) * power;
      }
      TSALLIS_UNROLL
      for (int r = 0; r < kCount; ++r) {
        if (sum[r] > kMostFloat) solved.of[r].from = kInfinity;
        float& top = solved.of[r].top;
        const float next = top - (sum[r] - 1.0f) / slope[r];
        if (first && next > top && top < 1.0f) {
          top = fminf(next, 1.0f);
          moves = true;
        }
        if (!(next < top)) continue;
        moves = moves || top - next > least_step;
        top = next;
      }
      first = false;
    }
  };
  if (alpha == 1.5f) {
    newton([](float x, float& sum, float& slope) {
      sum = fmaf(x, x, sum);
      slope += x;
    });
  } else if (alpha == 2.0f) {
    newton([](float x, float& sum, float& slope) {
      sum += x;
      slope += x > 0.0f ? 1.0f : 0.0f;
    });
  } else {
    newton([&](float x, float& sum, float& slope) {
      if (!(x > 0.0f)) return;
      const Weight weight = Weight::Of(x, alpha, power);
      sum += weight.p;
      slope += weight.u;
    });
  }
  return solved;
}

// Goes through the quad's list in the order of its places and writes it anew: what of(in, entry, z)
// keeps, with the value that it leaves in the entry, one place after the other; to(place, entry) is
// told of it. in: whether the lane has an entry here. The number of entries kept. The warp calls
// it; its lanes read what this wrote behind a SyncWarp.
template <class List, class Of, class To>
TSALLIS_DEVICE int KeepEntries(const List& list, int mine, const Of& of, const To& to) {
  const int lane = Lane(), t = lane % 4;
  int kept = 0;
  TSALLIS_LOOP
  for (int i = 0; Any(i < mine); i += List::kWrittenAtOnce) {
    Words2 entries[List::kWrittenAtOnce];
    TSALLIS_UNROLL
    for (int k = 0; k < List::kWrittenAtOnce; ++k) {
      entries[k] = i + k < mine ? list.Load(List::OwnAt(i + k)) : Words2{};
    }
    TSALLIS_UNROLL
    for (int k = 0; k < List::kWrittenAtOnce; ++k) {
      const bool in = i + k < mine;
      const float z = in ? list.unit * FloatOf(entries[k].w[0]) : -kInfinity;
      const bool keeps = of(in, &entries[k], z);
      const std::uint32_t quad = Ballot(keeps) >> (lane & 28) & 15u;
      // No place lies behind those that have been read.
      SyncWarp();
      if (keeps) {
        const int place = kept + CountBits(quad & ((1u << t) - 1u));
        list.Store(list.At(place), FloatOf(entries[k].w[0]), static_cast<int>(entries[k].w[1]));
        to(place, entries[k]);
      }
      kept += CountBits(quad);
    }
  }
  return kept;
}

// Keeps the entries of the quad's list whose z is not below `bound`, NaN among them, and spreads
// them evenly over its lanes; the number of them. The warp calls it.
template <int kStride>
TSALLIS_RARE int CompactList(const LongList<kStride> list, int mine, float bound) {
  return KeepEntries(
      list, mine, [&](bool in, Words2*, float z) { return in && !(z < bound); },
      [](int, const Words2&) {});
}
// Values move first and keys then, in half the registers: what the function takes is missing in the
// loop that it is called from.
template <int kStride, int kMostRoom>
TSALLIS_RARE int CompactList(const RowList<kStride, kMostRoom> list, int mine, float bound) {
  constexpr int kAtOnce = 4;
  const int t = Lane() % 4;
  // The lane with the most entries of the warp says how far to look.
  const std::uint32_t sizes = OrOfWarp(mine > 0 ? 1u << (mine - 1) : 0u);
  std::uint32_t keep = 0;
  int kept = 0, before = 0;
  TSALLIS_UNROLL
  for (int word = 0; word < 2; ++word) {
    std::uint32_t words[kMostRoom];
    TSALLIS_UNROLL
    for (int i = 0; i < kMostRoom; i += kAtOnce) {
      if (sizes >> i == 0) continue;
      TSALLIS_UNROLL
      for (int k = i; k < i + kAtOnce; ++k) words[k] = k < mine ? list.Word(k, word) : 0u;
    }
    if (word == 0) {
      std::uint32_t less = 0;
      TSALLIS_UNROLL
      for (int i = kMostRoom - kAtOnce; i >= 0; i -= kAtOnce) {
        if (sizes >> i == 0) continue;
        TSALLIS_UNROLL
        for (int k = i + kAtOnce - 1; k >= i; --k) {
          less = PushLess(less, list.unit * FloatOf(words[k]), bound);
        }
      }
      keep = ~less & ((1u << mine) - 1u);
      // Places in the order of the lanes.
      kept = before = CountBits(keep);
      TSALLIS_UNROLL
      for (int by = 1; by < 4; by *= 2) {
        const int more = ShuffleUp(before, by, 4);
        if (t >= by) before += more;
      }
    }
    int place = before - kept;
    SyncWarp();
    TSALLIS_UNROLL
    for (int i = 0; i < kMostRoom; i += kAtOnce) {
      if (sizes >> i == 0) continue;
      TSALLIS_UNROLL
      for (int k = i; k < i + kAtOnce; ++k) {
        if ((keep >> k & 1u) == 0) continue;
        list.StoreWord(place, word, words[k]);
        ++place;
      }
    }
  }
  return Shuffle(before, Lane() | 3);
}

}  // namespace TSALLIS_SIDE
}  // namespace tsallis::cuda
