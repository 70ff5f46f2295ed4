// One query head: from bounds of its scores to its answer.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "attention/cpu/decode/decode.h"

namespace tsallis::decode {

// Bounds of the scores of a row's keys.
struct Bounds {
  float* x = nullptr;    // [keys]; they are used up
  float top = 0.0f;      // the largest
  float product = 0.0f;  // the largest |product| times its factor
};

// A row without a key that has a score (value 0), or with one that is no number (NaN).
Answer Nothing(float* out, std::int64_t columns, double value);

class Row {
 public:
  // keys: of the visible ones, those that distance does not rule out; beyond: none of the others
  // has a larger score. products: with the keys, or null: the row reads those that it scores.
  Row(const Functions& functions, const Query& query, std::int64_t r, Scratch& scratch, float* out,
      Span keys, double beyond, const float* products = nullptr)
      : f_(functions),
        query_(query),
        map_(query.map[r]),
        r_(r),
        s_(scratch),
        out_(out),
        keys_(keys),
        beyond_(beyond),
        products_(products) {}

  // The answer from every key that has a weight. Softmax leaves its output to the caller, who reads
  // values for all heads together (Answer::pending_scale). nullopt: so many keys are to be scored
  // that the caller should read all, for all such heads together.
  std::optional<Answer> Exact(const Bounds& bounds);
  // Softmax on keys that hold at least 1 - epsilon of the mass. nullopt: all keys should be read.
  std::optional<Answer> Within(const Bounds& bounds);
  // The keys that an approximation chooses. bounds: for a certificate, or null.
  Answer Selected(const Bounds* bounds);

 private:
  Answer Softmax(float* x, float top);
  std::optional<Answer> Entmax(const Bounds& bounds);

  bool Screened() const { return query_.byte_offset >= 0; }
  Answer Broken() const { return Nothing(out_, query_.value_dim, std::nan("")); }
  // A score that is NaN or +inf breaks its row, and so does a sink.
  bool BrokenSink() const { return !(map_.sink < std::numeric_limits<double>::infinity()); }
  double LargestScore() const;
  // How far a bound in float32 may lie below the score, at most.
  double Slack(float top, float product) const;
  // Lists the keys whose bound is `bar` or more.
  std::size_t List(const float* bounds, double bar);
  // The largest bound of a key that List() left out.
  double Unscored(const float* bounds, double bar) const;
  // The scores of keys, into `scores`. False: one is NaN or infinite.
  bool Score(const std::uint32_t* index, std::size_t count, double* scores);
  // Scores the first `count` listed keys.
  bool Score(std::size_t count) {
    s_.scores.resize(count);
    return Score(s_.listed.get(), count, s_.scores.data());
  }
  // Answers of the first `count` listed keys and their scores, which are in Scratch. They leave the
  // keys with a weight listed.
  Answer SolvedEntmax(std::size_t count);
  Answer SolvedSoftmax(std::size_t count);
  std::int64_t BytesOfRows(std::size_t keys, std::size_t values) const;

  // The keys that an approximation chooses are listed.
  std::size_t Choose();
  std::size_t ChoosePages();
  // Bound what the keys that were not read can change; `read` ascends.
  double Certificate(const Bounds& bounds, const std::vector<std::uint32_t>& read,
                     const Answer& answer) const;
  double Lost(const std::vector<std::uint32_t>& read);

  const Functions& f_;
  const Query& query_;
  const Map& map_;
  std::int64_t r_;
  Scratch& s_;
  float* out_;
  Span keys_;
  double beyond_;
  const float* products_;  // [keys_] or null
};

// A score in float32 is this far from the exact one at most, relative to what it is made of.
inline constexpr double kRounding = 2e-6;

// Keys with the largest bounds that are scored for a first threshold, at most.
inline constexpr std::size_t kBest = 256;

}  // namespace tsallis::decode
