// The emulation itself: every kind of planted fault is found, and right kernels give right numbers
// under every order of threads.
#include "core/cuda/testing/simt.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "attention/cuda/call.h"
#include "core/cuda/device.h"

namespace tsallis::cuda {
namespace {

// The fault of a launch of a block with 64 threads and 1 KB of shared memory; empty: none. Every
// order must give the same.
template <class Kernel>
std::string FaultOf(Kernel kernel, unsigned threads = 64) {
  std::string first;
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    simt::machine.policy = simt::Policy::Draw(seed);
    std::string text;
    try {
      simt::Launch(+kernel, {1, 1, 1}, threads, 1024);
    } catch (const simt::Fault& fault) {
      text = fault.what();
    }
    if (seed == 0) first = text;
    EXPECT_EQ(text.empty(), first.empty()) << "order " << seed << ": " << text;
  }
  return first;
}

void ExpectFault(const std::string& got, const std::string& part) {
  EXPECT_NE(got.find(part), std::string::npos) << "got: " << got << "\nwant: " << part;
}

TEST(Simt, ARightKernelHasNoFault) {
  EXPECT_EQ(FaultOf([] {
              const Shared<int> memory(0);
              memory.Store(ThreadIndex(), ThreadIndex());
              SyncBlock();
              const int other = memory.Load(63 - ThreadIndex());
              SyncBlock();
              memory.Store(ThreadIndex(), other);
              SyncWarp();
              const int neighbour = memory.Load(ThreadIndex() ^ 1);
              if (neighbour != 63 - (ThreadIndex() ^ 1)) simt::Fail("a wrong number");
            }),
            "");
}

TEST(Simt, BarriersThatNotAllReach) {
  ExpectFault(FaultOf([] {
                if (ThreadIndex() < 40) SyncBlock();
              }),
              "barrier");
  ExpectFault(FaultOf([] {
                if (ThreadIndex() % 2 == 0) {
                  SyncBlock();
                } else {
                  SyncBlock();
                }
              }),
              "different barriers");
  ExpectFault(FaultOf([] {
                if (Lane() < 16) Shuffle(1, 0);
              }),
              "wait");
  ExpectFault(FaultOf([] {
                if (Lane() < 16) {
                  Shuffle(1, 0);
                } else {
                  Any(true);
                }
              }),
              "different instructions");
  // One warp waits for the block, the other for a lane that waits for the block.
  ExpectFault(FaultOf([] {
                if (ThreadIndex() != 0) SyncWarp();
                SyncBlock();
              }),
              "wait for ever");
}

TEST(Simt, SharedMemoryOutOfBoundsAndUnwritten) {
  ExpectFault(FaultOf([] { Shared<int>(0).Store(ThreadIndex() * 5, 1); }), "outside of shared");
  ExpectFault(FaultOf([] { Shared<int>(0).Load(ThreadIndex()); }), "never written");
  ExpectFault(FaultOf([] { Shared<Words4>(8).Store(0, {}); }), "not aligned");
  ExpectFault(FaultOf([] { Shared<int>(0).Load(-1 - ThreadIndex()); }), "outside of shared");
}

TEST(Simt, Races) {
  const std::string unordered = "without a barrier";
  // A race of warps, after a barrier of the warp only.
  ExpectFault(FaultOf([] {
                Shared<int>(0).Store(ThreadIndex(), 1);
                SyncBlock();
                Shared<int>(0).Store(ThreadIndex(), 2);
                SyncWarp();
                Shared<int>(0).Load(63 - ThreadIndex());
              }),
              "race");
  // A race of lanes, with a shuffle between.
  ExpectFault(FaultOf([] {
                Shared<int>(0).Store(ThreadIndex(), 1);
                SyncBlock();
                Shared<int>(0).Store(ThreadIndex(), 2);
                ShuffleXor(1, 1);
                Shared<int>(0).Load(ThreadIndex() ^ 1);
              }),
              unordered);
  // Two writers.
  ExpectFault(FaultOf([] { Shared<int>(0).Store(ThreadIndex() / 2, 1); }), unordered);
  // A write after others' reads.
  ExpectFault(FaultOf([] {
                Shared<int>(0).Store(ThreadIndex(), 1);
                SyncBlock();
                Shared<int>(0).Load(ThreadIndex() / 2);
                Shared<int>(0).Store(ThreadIndex(), 2);
              }),
              unordered);
  ExpectFault(FaultOf([] {
                Shared<int>(0).Store(ThreadIndex(), 1);
                SyncBlock();
                const int other = Shared<int>(0).Load(ThreadIndex() ^ 32);
                SyncWarp();
                Shared<int>(0).Store(ThreadIndex(), other);
              }),
              unordered);
}

const Words4* Source() {
  static Words4* const memory = [] {
    auto* words = static_cast<Words4*>(simt::AllocateDevice(64 * sizeof(Words4)));
    for (std::uint32_t i = 0; i < 64; ++i) words[i] = {{i, i, i, i}};
    return words;
  }();
  return memory;
}

TEST(Simt, AsynchronousCopies) {
  const auto right = [] {
    const Shared<Words4> memory(0);
    CopyAsync(memory, ThreadIndex(), Source() + ThreadIndex(), ThreadIndex() < 40);
    CommitCopies();
    WaitForCopies<0>();
    SyncBlock();
    const int other = 63 - ThreadIndex();
    const std::uint32_t expected = other < 40 ? static_cast<std::uint32_t>(other) : 0;
    if (memory.Load(other).w[2] != expected) simt::Fail("a wrong number");
  };
  EXPECT_EQ(FaultOf(right), "");
  ExpectFault(FaultOf([] {
                CopyAsync(Shared<Words4>(0), ThreadIndex(), Source(), true);
                CommitCopies();
                SyncBlock();
                Shared<Words4>(0).Load(63 - ThreadIndex());
                WaitForCopies<0>();
              }),
              "still under way");
  // Another thread's copy, waited for without a barrier: a race, or a copy under way.
  EXPECT_NE(FaultOf([] {
              CopyAsync(Shared<Words4>(0), ThreadIndex(), Source(), true);
              CommitCopies();
              WaitForCopies<0>();
              Shared<Words4>(0).Load(63 - ThreadIndex());
            }),
            "");
  // One group too many left open.
  ExpectFault(FaultOf([] {
                CopyAsync(Shared<Words4>(0), ThreadIndex(), Source(), true);
                CommitCopies();
                WaitForCopies<1>();
                SyncBlock();
                Shared<Words4>(0).Load(ThreadIndex());
              }),
              "still under way");
  ExpectFault(FaultOf([] {
                CopyAsync(Shared<Words4>(0), ThreadIndex(), Source(), true);
                CommitCopies();
              }),
              "before it waits");
  ExpectFault(FaultOf([] {
                CopyAsync(Shared<Words4>(0), ThreadIndex(), Source() + 64, true);
                CommitCopies();
                WaitForCopies<0>();
              }),
              "outside of device memory");
}

TEST(Simt, DeviceMemory) {
  static int* const memory = static_cast<int*>(simt::AllocateDevice(64 * sizeof(int)));
  static int host[64] = {};
  EXPECT_EQ(FaultOf([] { StoreDevice(memory + ThreadIndex(), 1); }), "");
  ExpectFault(FaultOf([] { StoreDevice(memory + 1 + ThreadIndex(), 1); }), "outside of device");
  ExpectFault(FaultOf([] { LoadDevice(host + ThreadIndex()); }), "outside of device");
  ExpectFault(FaultOf([] { StoreDevice(memory + ThreadIndex() / 2, 1); }), "two threads");
  ExpectFault(FaultOf([] {
                StoreDevice(memory + ThreadIndex(), 1);
                SyncBlock();
                LoadDevice(memory + 63 - ThreadIndex());
              }),
              "another thread of the launch");
  // What a block has for itself.
  EXPECT_EQ(FaultOf([] {
              StoreOfBlock(memory + ThreadIndex(), ThreadIndex());
              SyncWarp();
              const int other = LoadOfBlock(memory + (ThreadIndex() ^ 1));
              SyncBlock();
              if (other + LoadOfBlock(memory + 63 - ThreadIndex()) > 126) simt::Fail("wrong");
            }),
            "");
  ExpectFault(FaultOf([] { LoadOfBlock(memory + ThreadIndex()); }), "never written");
  ExpectFault(FaultOf([] { StoreOfBlock(host + ThreadIndex(), 1); }), "outside of device");
  ExpectFault(FaultOf([] {
                StoreOfBlock(memory + ThreadIndex(), 1);
                SyncBlock();
                StoreOfBlock(memory + ThreadIndex(), 2);
                SyncWarp();
                LoadOfBlock(memory + 63 - ThreadIndex());
              }),
              "a race");
  ExpectFault(FaultOf([] {
                StoreOfBlock(memory + ThreadIndex(), 1);
                SyncWarp();
                LoadOfBlock(memory + (ThreadIndex() ^ 1));
                StoreOfBlock(memory + ThreadIndex(), 2);
              }),
              "a race");
  const auto shared = +[] { StoreOfBlock(memory + ThreadIndex(), 1); };
  EXPECT_THROW(simt::Launch(shared, {2, 1, 1}, 64, 0), simt::Fault);
}

TEST(Simt, LaunchesThatCannotBe) {
  const auto nothing = +[] {};
  EXPECT_THROW(simt::Launch(nothing, {1, 1, 1}, 48, 0), simt::Fault);
  EXPECT_THROW(simt::Launch(nothing, {0, 1, 1}, 64, 0), simt::Fault);
  EXPECT_THROW(simt::Launch(nothing, {1, 65536, 1}, 64, 0), simt::Fault);
}

TEST(Simt, VotesAndShuffles) {
  EXPECT_EQ(FaultOf([] {
              const int lane = Lane();
              const bool right = Shuffle(lane, 7) == 7 && ShuffleXor(lane, 5) == (lane ^ 5) &&
                                 ShuffleUp(lane, 1, 4) == (lane % 4 == 0 ? lane : lane - 1) &&
                                 Ballot(lane % 3 == 0) == 0x49249249u && Any(lane == 4) &&
                                 !Any(lane > 31) &&
                                 MatchAny(static_cast<std::uint32_t>(lane % 2)) ==
                                     (lane % 2 == 0 ? 0x55555555u : 0xAAAAAAAAu);
              if (!right) simt::Fail("a wrong number");
            }),
            "");
  EXPECT_EQ(FaultOf([] {
              // Two warps: a barrier counts both, an or is each warp's own.
              const int thread = ThreadIndex();
              if (SyncBlockCount(thread % 3 == 0) != 22 || SyncBlockCount(false) != 0 ||
                  SyncBlockCount(thread == 63) != 1) {
                simt::Fail("a wrong count");
              }
              if (OrOfWarp(1u << thread % 32 & 0xF0u) != 0xF0u ||
                  OrOfWarp(thread == 40 ? 2u : 0u) != (thread < 32 ? 0u : 2u)) {
                simt::Fail("a wrong or");
              }
            }),
            "");
}

TEST(Simt, ComparisonsAsBits) {
  const float nan = kInfinity - kInfinity;
  EXPECT_EQ(PushLess(5u, 1.0f, 2.0f), 11u);
  EXPECT_EQ(PushLess(5u, 2.0f, 2.0f), 10u);
  EXPECT_EQ(PushLess(0u, -kInfinity, -kMostFloat), 1u);
  EXPECT_EQ(PushLess(0u, kInfinity, kMostFloat), 0u);
  EXPECT_EQ(PushLess(0u, nan, 1.0f), 0u);
  EXPECT_EQ(PushLess(0u, -1.0f, nan), 0u);
}

// ---- matrix products ----------------------------------------------------------------------------

struct MatrixCase {
  std::vector<float> a, b, d;  // [16, 16], [16, 8], [16, 8]
};
MatrixCase* matrix_case = nullptr;

// a from shared memory by ldmatrix, b [8, 16] by rows of columns by ldmatrix or [16, 8] transposed.
template <class Type, bool kTransposed>
void MultiplyOnce() {
  MatrixCase& c = *matrix_case;
  const int lane = Lane(), g = lane / 4, t = lane % 4;
  const Shared<std::uint32_t> words(0);
  const auto pair = [](float x, float y) {
    return static_cast<std::uint32_t>(Type::FromFloat(x)) |
           static_cast<std::uint32_t>(Type::FromFloat(y)) << 16;
  };
  for (int i = lane; i < 128; i += kWarp) words.Store(i, pair(c.a[2 * i], c.a[2 * i + 1]));
  for (int i = lane; i < 64; i += kWarp) {
    // Rows of 8 words are columns of b, or rows of 4 words are rows of b.
    const int row = i / 8, at = i % 8 * 2;
    words.Store(128 + i, kTransposed ? pair(c.b[2 * i], c.b[2 * i + 1])
                                     : pair(c.b[at * 8 + row], c.b[(at + 1) * 8 + row]));
  }
  SyncWarp();
  std::uint32_t a[4], b[4];
  const Shared<Words4> rows(0);
  LoadMatrices(a, rows, lane % 16 * 2 + lane / 16);
  if (kTransposed) {
    LoadTransposed(b, rows, 32 + lane % 16);
  } else {
    LoadMatrices(b, rows, 32 + lane % 8 * 2 + lane / 8 % 2);
  }
  float d[4];
  for (int i = 0; i < 4; ++i) d[i] = c.d[(g + i / 2 * 8) * 8 + 2 * t + i % 2];
  MultiplyMatrices<Type>(d, a, b[0], b[1]);
  for (int i = 0; i < 4; ++i) c.d[(g + i / 2 * 8) * 8 + 2 * t + i % 2] = d[i];
}

template <class Type>
void CheckProducts() {
  std::mt19937_64 engine(3);
  std::normal_distribution<float> normal;
  for (std::uint64_t seed = 0; seed < 24; ++seed) {
    simt::machine.policy = simt::Policy::Draw(seed);
    MatrixCase c;
    for (auto* array : {&c.a, &c.b, &c.d}) {
      array->resize(array == &c.a ? 256 : 128);
      for (float& x : *array) x = Type::ToFloat(Type::FromFloat(normal(engine)));
    }
    const MatrixCase before = c;
    matrix_case = &c;
    if (seed % 2 == 0) {
      simt::Launch(MultiplyOnce<Type, false>, {1, 1, 1}, 32, 768);
    } else {
      simt::Launch(MultiplyOnce<Type, true>, {1, 1, 1}, 32, 768);
    }
    for (int i = 0; i < 16; ++i) {
      for (int j = 0; j < 8; ++j) {
        double sum = static_cast<double>(before.d[i * 8 + j]), size = std::abs(sum);
        for (int x = 0; x < 16; ++x) {
          const double term =
              static_cast<double>(before.a[i * 16 + x]) * static_cast<double>(before.b[x * 8 + j]);
          sum += term;
          size += std::abs(term);
        }
        ASSERT_NEAR(c.d[i * 8 + j], sum, size * 0x1p-21) << seed << " " << i << " " << j;
      }
    }
  }
}

TEST(Simt, MatrixProductsInBFloat16) { CheckProducts<BFloat16>(); }
TEST(Simt, MatrixProductsInFloat16) { CheckProducts<Float16>(); }

// The sum of tensor cores: small terms beside a large one are cut off, not rounded.
TEST(Simt, SumsAreCutOff) {
  float a[16] = {1.0f, 0x1p-26f, 0x1p-26f}, b[16] = {};
  for (float& x : b) x = 1.0f;
  EXPECT_EQ(simt::TruncatedSum(a, b, 1, 0.0f), 1.0f);
  a[1] = a[2] = 0x1p-25f;  // two of them reach the last place but one of the aligned sum
  EXPECT_EQ(simt::TruncatedSum(a, b, 1, 0.0f), 1.0f);
  a[1] = a[2] = 0x1p-24f;
  EXPECT_EQ(simt::TruncatedSum(a, b, 1, 0.0f), 1.0f + 0x1p-23f);
  a[2] = 0.0f;
  EXPECT_EQ(simt::TruncatedSum(a, b, 1, 0.0f), 1.0f);  // half a unit: down
  a[0] = -1.0f;
  a[1] = -0x1p-24f;
  EXPECT_EQ(simt::TruncatedSum(a, b, 1, 0.0f), -1.0f);
  a[0] = INFINITY;
  EXPECT_EQ(simt::TruncatedSum(a, b, 1, 0.0f), INFINITY);
  a[0] = NAN;
  EXPECT_TRUE(std::isnan(simt::TruncatedSum(a, b, 1, 0.0f)));
}

TEST(Simt, BankConflictsAreCounted) {
  const auto load = +[](int rows) {
    const Shared<Words4> memory(0);
    for (int i = Lane(); i < 8 * rows; i += kWarp) memory.Store(i, {});
    SyncWarp();
    std::uint32_t words[4];
    LoadMatrices(words, memory, Lane() % 8 * rows);
  };
  simt::machine.counters = {};
  simt::Launch(load, {1, 1, 1}, 32, 8 * 9 * 16, 9);
  EXPECT_EQ(simt::machine.counters.bank_conflicts, 0u);  // rows of nine pieces: eight banks
  simt::Launch(load, {1, 1, 1}, 32, 8 * 8 * 16, 8);
  EXPECT_EQ(simt::machine.counters.bank_conflicts, 28u);  // rows of eight: all in one
  EXPECT_EQ(simt::machine.counters.matrix_loads, 2u);
}

}  // namespace
}  // namespace tsallis::cuda
