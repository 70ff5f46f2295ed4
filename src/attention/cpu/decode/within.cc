// Softmax on keys that hold at least 1 - epsilon of the mass. With bounds u of the scores s and the
// set R of keys that were read, the mass of the others is at most
//
//   U / (Z + U),   U = sum of e^u over the others,   Z = sum of e^s over R,
//
// so keys are read by descending bound until that is epsilon or less. The output then differs from
// the exact one by 2 epsilon times the largest norm of a value at most.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "attention/cpu/decode/row.h"

namespace tsallis::decode {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Keys whose e^u agree in exponent and two bits of the mantissa are read together.
constexpr std::size_t kBins = 512;
std::size_t BinOf(float e) {
  const auto one = std::bit_cast<std::uint32_t>(1.0f), bits = std::bit_cast<std::uint32_t>(e);
  return bits >= one ? 0 : std::min<std::size_t>((one - bits) >> 21, kBins - 1);
}

// Where more than one key in so many must be read, all are, for all heads together: reading 3 % of
// 65 536 keys one by one takes as long.
constexpr std::uint32_t kFlat = 32;

// An exponential that came out as 0 is no larger.
constexpr double kVanished = 1.3e-38;

}  // namespace

std::optional<Answer> Row::Within(const Bounds& bounds) {
  const std::int64_t n = keys_.size();
  if (n == 0 || bounds.top == -kInfinity) return Nothing(out_, query_.value_dim, 0.0);
  if (BrokenSink()) return Broken();
  float* e = bounds.x;
  const double top = static_cast<double>(bounds.top), slack = Slack(bounds.top, bounds.product);
  // The bound of a key that is not finite says nothing, nor do those of vast scores. A soft cap may
  // make them finite, the product shows them.
  if (!std::isfinite(top) || !(slack < 1.0)) return std::nullopt;
  // Raises a bound, for the slack and for roundings of float32.
  const double inflate = std::exp(slack) * (1.0 + 1e-5);
  const double epsilon = query_.mode.epsilon;
  // U may be this times Z.
  const double ratio = epsilon / (1.0 - epsilon) * std::exp(-slack) * (1.0 - 1e-6);
  const double sink = std::exp(map_.sink - top);
  const std::int64_t far = keys_.begin - query_.visible.begin;
  const double beyond =
      far > 0 ? static_cast<double>(far) * std::exp(beyond_ - top) * inflate : 0.0;

  // The best keys say how large Z is at least, and so which keys cannot matter.
  f_.exponentials(e, static_cast<std::size_t>(n), bounds.top);
  const std::size_t best = std::min(List(e, 0.1), kBest);
  if (!Score(best)) return Broken();
  double z = sink;
  for (const double s : s_.scores) z += std::exp(s - top);
  double least = std::min(0.1, (ratio * z - beyond) / (8.0 * static_cast<double>(n) * inflate));
  if (!(least > 100.0 * kVanished)) least = 0.0;
  const std::size_t count = List(e, least > 0.0 ? least : -1.0);
  const double never =
      static_cast<double>(n - static_cast<std::int64_t>(count)) * least * inflate + beyond;

  // Positions in the list by descending bound, bin after bin.
  std::uint32_t* index = s_.listed.get();
  std::array<std::uint32_t, kBins + 1> begin{};
  std::array<double, kBins + 1> tail{};  // of bins from here on
  const auto bound_of = [&](std::size_t i) { return e[index[i] - keys_.begin]; };
  for (std::size_t i = 0; i < count; ++i) {
    const float bound = bound_of(i);
    const std::size_t bin = BinOf(bound);
    ++begin[bin + 1];
    tail[bin] += static_cast<double>(bound) + kVanished;
  }
  for (std::size_t bin = kBins; bin-- > 0;) tail[bin] += tail[bin + 1];
  for (std::size_t bin = 0; bin < kBins; ++bin) begin[bin + 1] += begin[bin];
  // Z is at most the sum of the bounds that are read: so many bins at least.
  std::size_t needed = 0;
  while (needed < kBins &&
         tail[needed] * inflate + never > ratio * (tail[0] - tail[needed] + sink)) {
    ++needed;
  }
  if (begin[needed] > static_cast<std::uint32_t>(n) / kFlat) return std::nullopt;
  std::uint32_t* order = s_.order.Reserve(static_cast<std::int64_t>(count) + 16);
  {
    std::array<std::uint32_t, kBins + 1> at = begin;
    for (std::size_t i = 0; i < count; ++i) {
      order[at[BinOf(bound_of(i))]++] = static_cast<std::uint32_t>(i);
    }
  }

  std::uint32_t* chunk = s_.chunk.Reserve(static_cast<std::int64_t>(count) + 16);
  s_.scores.assign(count, -kInfinity);
  std::vector<double> scores;
  z = sink;
  double unread = tail[0] * inflate + never;
  std::size_t done = 0, bins = 0;
  while (bins < kBins && unread > ratio * z) {
    const std::size_t wanted = done + std::max<std::size_t>(64, done / 8);
    while (bins < kBins && begin[bins] < wanted && begin[bins] < count) ++bins;
    const std::size_t size = begin[bins] - done;
    if (size == 0) break;
    for (std::size_t i = 0; i < size; ++i) chunk[i] = index[order[done + i]];
    scores.resize(size);
    if (!Score(chunk, size, scores.data())) return Broken();
    for (std::size_t i = 0; i < size; ++i) {
      s_.scores[order[done + i]] = scores[i];
      z += std::exp(scores[i] - top);
    }
    done += size;
    unread = tail[bins] * inflate + never;
  }

  if (unread > ratio * z) return std::nullopt;

  // Keeps the keys that were read, in ascending order.
  std::size_t read = 0;
  for (std::size_t i = 0; i < count; ++i) {
    if (BinOf(bound_of(i)) >= bins) continue;
    s_.scores[read] = s_.scores[i];
    index[read++] = index[i];
  }
  s_.scores.resize(read);
  std::vector<std::uint32_t> kept;
  if (query_.wants_lost) kept.assign(index, index + read);
  // A sink may leave so little that no key is read: then the rest is the sink's.
  const bool nothing = LargestScore() == -kInfinity && (read > 0 || map_.sink == -kInfinity);
  Answer answer = nothing ? Nothing(out_, query_.value_dim, 0.0) : SolvedSoftmax(read);
  answer.scored = static_cast<std::int64_t>(read);
  // Without bytes the rows of all keys were read for their bounds.
  if (!Screened()) answer.bytes_read -= BytesOfRows(read, 0);
  if (Screened() && best > read) answer.bytes_read += BytesOfRows(best - read, 0);
  const double of_read = z * std::exp(-slack);
  answer.certificate = unread > 0.0 ? unread / (of_read + unread) : 0.0;
  if (query_.wants_lost) answer.lost = Lost(kept);
  return answer;
}

}  // namespace tsallis::decode
