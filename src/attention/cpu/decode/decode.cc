#include "attention/cpu/decode/decode.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/parallel.h"

namespace tsallis::decode {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// A float that is no smaller.
float Up(double value) {
  return std::nextafterf(static_cast<float>(value), std::numeric_limits<float>::infinity());
}

// A score in float32 is this far from the exact one at most, relative to what it is made of.
constexpr double kRounding = 2e-6;

// Keys with the largest bounds that are scored for a first threshold, at most.
constexpr std::size_t kBest = 256;

// From here on the unit in the last place of a score in float32 is 1.
constexpr float kVast = 0x1p24f;

// u^b and u^(b - 1) of u > 0, b = 1 / (alpha - 1).
struct Square {
  double Value(double u) const { return u * u; }
  double Slope(double u) const { return u; }
  double Root(double sum) const { return std::sqrt(sum); }
};
struct Identity {
  double Value(double u) const { return u; }
  double Slope(double) const { return 1.0; }
  double Root(double) const { return 1.0; }
};
struct General {
  double b;
  double Value(double u) const { return std::pow(u, b); }
  double Slope(double u) const { return std::pow(u, b - 1.0); }
  double Root(double sum) const { return std::pow(sum, 1.0 - 1.0 / b); }
};

template <class Run>
auto WithPower(double alpha, const Run& run) {
  if (alpha == 1.5) return run(Square());
  if (alpha == 2.0) return run(Identity());
  return run(General{1.0 / (alpha - 1.0)});
}

// The tau with sum [z - tau]^b = 1. z <= 0 with one of 0, so that tau lies in [-1, 0). Newton's
// steps on the norm of [z - tau] do not overshoot from below where b >= 1 (entmax-inl.h); where
// they leave the bracket it is halved.
template <class Power>
double Threshold(const Power& power, const std::vector<double>& z, double least) {
  double low = -1.0, high = 0.0, tau = -1.0;
  for (int step = 0; step < 200; ++step) {
    double sum = 0.0, slope = 0.0;
    for (const double value : z) {
      const double u = value - tau;
      if (value < least || u <= 0.0) continue;
      sum += power.Value(u);
      slope += power.Slope(u);
    }
    (sum >= 1.0 ? low : high) = tau;
    double next = tau + (sum - power.Root(sum)) / slope;
    if (!(next > low && next < high)) {
      // It stands at the root, or on the wrong side of it by a rounding.
      if (std::abs(next - tau) <= 4e-16) return tau;
      next = 0.5 * (low + high);
    }
    if (std::abs(next - tau) <= 1e-16 || next == low || next == high) return next;
    tau = next;
  }
  return tau;
}

// z of the keys and, behind them, of the sink if there is one, relative to the largest score, which
// it returns.
double Relative(const Map& map, const std::vector<double>& keys, std::vector<double>* z) {
  *z = keys;
  if (map.sink > -kInfinity) z->push_back(map.sink);
  const double top = *std::max_element(z->begin(), z->end());
  for (double& value : *z) value = (map.alpha - 1.0) * (value - top);
  return top;
}

Answer Nothing(float* out, std::int64_t columns, double value) {
  std::fill_n(out, columns, static_cast<float>(value));
  Answer answer{.out = out};
  const bool broken = std::isnan(value);
  answer.tau = broken ? value : -kInfinity;
  answer.entropy = value;
  answer.maximum = broken ? value : -kInfinity;
  answer.support = broken ? -1 : 0;
  return answer;
}

// Turns the bounds of one query head into its answer.
class Row {
 public:
  Row(const Functions& functions, const Query& query, std::int64_t r, Scratch& scratch, float* out)
      : f_(functions), query_(query), map_(query.map[r]), r_(r), s_(scratch), out_(out) {}

  // top: the largest bound; product: the largest |product| times its factor.
  Answer Finish(float* bounds, float top, float product) {
    const std::int64_t n = query_.visible.size();
    // A bound may be infinite where the key is not a number, and that is found out.
    if (!Screened() && (std::isnan(top) || top == kInfinity)) return Broken();
    if (n == 0 || top == -kInfinity) return Nothing(out_, query_.value_dim, 0.0);
    return map_.softmax() ? Softmax(bounds, top) : Entmax(bounds, top, product);
  }

 private:
  Answer Softmax(float* x, float top) {
    const std::int64_t n = query_.visible.size();
    std::uint32_t* index = s_.listed.Reserve(n + 16);
    for (std::int64_t j = 0; j < n; ++j) {
      index[j] = static_cast<std::uint32_t>(query_.visible.begin + j);
    }
    const auto most = static_cast<float>(std::max(static_cast<double>(top), map_.sink));
    const double keys = f_.exponentials(x, static_cast<std::size_t>(n), most);
    const double sum = keys + std::exp(map_.sink - static_cast<double>(most));
    Answer answer{.out = out_, .maximum = static_cast<double>(top), .scored = n};
    double entropy = 0.0;
    for (std::int64_t j = 0; j < n; ++j) {
      const double p = static_cast<double>(x[j]) / sum;
      x[j] = static_cast<float>(p);
      if (!(x[j] > 0.0f)) continue;
      ++answer.support;
      if (query_.wants_entropy) entropy -= p * std::log(p);
    }
    answer.entropy = entropy;
    answer.tau = static_cast<double>(most) + std::log(sum);
    f_.gather_sum(*query_.values, index, x, static_cast<std::size_t>(n), query_.value_dim, out_);
    return answer;
  }

  Answer Entmax(const float* bounds, float top, float product) {
    const double slack = Slack(top, product);
    double bar = static_cast<double>(top) - map_.Reach() - slack;
    if (Screened()) {
      // The largest bounds belong to some of the best keys; their threshold is none too high.
      const std::size_t best = List(bounds, static_cast<double>(top) - 0.25 * map_.Reach());
      if (!Score(std::min(best, kBest))) return Broken();
      bar = LargestScore() > -kInfinity ? LeastThreshold(map_, s_.scores) - slack : -kInfinity;
    }
    const std::size_t count = List(bounds, bar);
    if (!Score(count)) return Broken();
    Answer answer{
        .out = out_, .maximum = LargestScore(), .scored = static_cast<std::int64_t>(count)};
    if (answer.maximum == -kInfinity) return Nothing(out_, query_.value_dim, 0.0);
    answer.tau = Solve(map_, s_.scores, &s_.solved);
    if (query_.wants_certificate && answer.scored < query_.visible.size()) {
      answer.certificate = (map_.alpha - 1.0) * (Unscored(bounds, bar) + slack) - answer.tau;
    }
    std::uint32_t* index = s_.listed.get();
    std::size_t support = 0;
    float* weights = s_.weights.Reserve(static_cast<std::int64_t>(count) + 16);
    for (std::size_t i = 0; i < count; ++i) {
      const float p = s_.solved[i];
      if (!(p > 0.0f)) continue;
      index[support] = index[i];
      weights[support++] = p;
      answer.entropy -= static_cast<double>(p) * std::log(static_cast<double>(p));
    }
    answer.support = static_cast<std::int64_t>(support);
    f_.gather_sum(*query_.values, index, weights, support, query_.value_dim, out_);
    return answer;
  }

  bool Screened() const { return query_.byte_offset >= 0; }

  double LargestScore() const {
    double most = -kInfinity;
    for (const double s : s_.scores) most = std::max(most, s);
    return most;
  }

  Answer Broken() const { return Nothing(out_, query_.value_dim, std::nan("")); }

  // How far a bound in float32 may lie below the score, at most.
  double Slack(float top, float product) const {
    // The terms of a score that comes near the largest are not much larger than its product.
    const std::int64_t farthest = std::max(std::abs(query_.position - query_.visible.begin),
                                           std::abs(query_.position - query_.visible.end + 1));
    const double stretch = query_.terms[r_].Stretch(farthest);
    const double size = stretch * static_cast<double>(product) + stretch * stretch +
                        std::abs(static_cast<double>(top)) + map_.Reach();
    return 2.0 * kRounding * size;
  }

  static float Below(double bar) {
    return std::nextafterf(static_cast<float>(bar), -std::numeric_limits<float>::infinity());
  }

  // Lists the keys whose bound is `bar` or more.
  std::size_t List(const float* bounds, double bar) {
    const std::int64_t n = query_.visible.size();
    std::uint32_t* index = s_.listed.Reserve(n + 16);
    // What is no number is not below anything.
    const float least = std::isnan(bar) ? -std::numeric_limits<float>::infinity() : Below(bar);
    return f_.at_least(bounds, static_cast<std::size_t>(n), least,
                       static_cast<std::uint32_t>(query_.visible.begin), index);
  }

  // The largest bound of a key that List() left out.
  double Unscored(const float* bounds, double bar) const {
    const float least = Below(bar);
    float most = -std::numeric_limits<float>::infinity();
    for (std::int64_t j = 0; j < query_.visible.size(); ++j) {
      if (bounds[j] < least) most = std::max(most, bounds[j]);
    }
    return static_cast<double>(most);
  }

  // The scores of the first `count` that are listed. False: one is NaN or infinite.
  bool Score(std::size_t count) {
    const HeadTerms& terms = query_.terms[r_];
    const std::uint32_t* index = s_.listed.get();
    float* dots = s_.dots.Reserve(static_cast<std::int64_t>(count) + 16);
    f_.gather_dots(*query_.keys, index, count, query_.q + r_ * Padded(query_.head_dim),
                   query_.head_dim, dots);
    s_.scores.resize(count);
    for (std::size_t i = 0; i < count; ++i) {
      const double x = query_.factor[r_] * static_cast<double>(dots[i]);
      const double s = terms.any() ? terms.Score(x, query_.position - index[i]) : x;
      if (std::isnan(s) || s == kInfinity) return false;
      s_.scores[i] = s;
    }
    return true;
  }

  const Functions& f_;
  const Query& query_;
  const Map& map_;
  std::int64_t r_;
  Scratch& s_;
  float* out_;
};

}  // namespace

double Solve(const Map& map, const std::vector<double>& keys, std::vector<float>* p) {
  std::vector<double> z;
  const double top = Relative(map, keys, &z);
  return WithPower(map.alpha, [&](const auto& power) {
    // First on all, then on the support alone, from the start: what else is in the list leaves no
    // trace.
    const double near = Threshold(power, z, -kInfinity);
    const double least = near - 1e-12;
    const double tau = Threshold(power, z, least);
    double sum = 0.0;
    const auto weight = [&](double value) {
      const double u = value - tau;
      return value < least || u <= 0.0 ? 0.0 : power.Value(u);
    };
    for (const double value : z) sum += weight(value);
    p->resize(keys.size());
    for (std::size_t i = 0; i < keys.size(); ++i) {
      (*p)[i] = static_cast<float>(weight(z[i]) / sum);
    }
    return tau + (map.alpha - 1.0) * top;
  });
}

double LeastThreshold(const Map& map, const std::vector<double>& keys) {
  std::vector<double> z;
  const double top = Relative(map, keys, &z);
  const double tau =
      WithPower(map.alpha, [&](const auto& power) { return Threshold(power, z, -kInfinity); });
  return top + (tau - 1e-12) / (map.alpha - 1.0);
}

namespace {

// Bounds of the scores of keys [begin, end) from their bytes; begin is at the start of a page or
// the first that is visible.
void BytesOfRun(const Functions& f, const Query& query, const ByteQuery* bytes, std::int64_t begin,
                std::int64_t end, float* x, std::int64_t pitch) {
  alignas(64) float page_bounds[kRows * kPage];
  for (std::int64_t page = begin / kPage; page * kPage < end; ++page) {
    const bool more = (page + 1) * kPage < query.visible.end;
    f.byte_bounds(query.keys->pages[page] + query.byte_offset,
                  more ? query.keys->pages[page + 1] + query.byte_offset : nullptr, query.head_dim,
                  bytes, query.rows, page_bounds, kPage);
    const std::int64_t from = std::max(begin, page * kPage);
    const std::int64_t to = std::min(end, (page + 1) * kPage);
    for (std::int64_t r = 0; r < query.rows; ++r) {
      std::copy_n(page_bounds + r * kPage + from - page * kPage, to - from,
                  x + r * pitch + from - begin);
    }
  }
}

}  // namespace

void Attend(const Functions& functions, const Context& context, const Query& asked,
            Scratch& scratch, Answer* answers) {
  Query query = asked;
  for (std::int64_t r = 0; r < query.rows; ++r) {
    if (query.map[r].softmax()) query.byte_offset = -1;
  }
  const Span keys = query.visible;
  const std::int64_t pitch = keys.size() + 16;
  const std::int64_t first_run = keys.begin / kRun;
  const std::int64_t runs = keys.size() > 0 ? (keys.end - 1) / kRun + 1 - first_run : 0;
  float* bounds = scratch.bounds.Reserve(query.rows * pitch);
  float* tops = scratch.largest.Reserve(2 * query.rows * runs);
  float* products = tops + query.rows * runs;
  const std::int64_t padded = Padded(query.head_dim), width = ByteColumns(query.head_dim);
  std::int8_t* of_rows = query.byte_offset < 0 ? nullptr : scratch.bytes.Reserve(kRows * width);
  ByteQuery bytes[kRows];
  double bound_factor[kRows];
  for (std::int64_t r = 0; r < query.rows; ++r) {
    bound_factor[r] = query.factor[r];
    if (query.byte_offset < 0) continue;
    // Bounds are from above: a negative factor takes the query's sign.
    bytes[r] = PutQuery(query.q + r * padded, query.head_dim, of_rows + r * width);
    if (query.factor[r] < 0.0) {
      for (std::int64_t x = 0; x < width; ++x) {
        of_rows[r * width + x] = static_cast<std::int8_t>(-of_rows[r * width + x]);
      }
      bytes[r].sum = -bytes[r].sum;
      bound_factor[r] = -query.factor[r];
    }
  }
  ParallelTasks(context, runs, [&](std::int64_t run, int) {
    const std::int64_t begin = std::max(keys.begin, (first_run + run) * kRun);
    const std::int64_t end = std::min(keys.end, (first_run + run + 1) * kRun);
    float* x = bounds + begin - keys.begin;
    if (query.byte_offset >= 0) {
      BytesOfRun(functions, query, bytes, begin, end, x, pitch);
    } else {
      functions.dots(*query.keys, begin, end - begin, query.q, query.rows, query.head_dim, x,
                     pitch);
    }
    for (std::int64_t r = 0; r < query.rows; ++r) {
      products[r * runs + run] = functions.scores(
          query.terms[r], bound_factor[r], query.position - begin, end - begin, x + r * pitch);
      tops[r * runs + run] =
          functions.maximum(x + r * pitch, static_cast<std::size_t>(end - begin));
    }
  });
  for (std::int64_t r = 0; r < query.rows; ++r) {
    float top = -std::numeric_limits<float>::infinity(), product = 0.0f;
    for (std::int64_t run = 0; run < runs; ++run) {
      const float own = tops[r * runs + run];
      if (!(own <= top)) top = std::isnan(top) ? top : own;
      product = std::max(product, products[r * runs + run]);
    }
    answers[r] =
        Row(functions, query, r, scratch, answers[r].out).Finish(bounds + r * pitch, top, product);
    answers[r].vast = product >= kVast && static_cast<double>(product) < kInfinity;
  }
}

ByteQuery PutQuery(const float* values, std::int64_t columns, std::int8_t* bytes) {
  ByteQuery query{.bytes = bytes};
  float largest = 0.0f;
  for (std::int64_t x = 0; x < columns; ++x) largest = std::max(largest, std::abs(values[x]));
  query.step = largest / 127.0f;
  const float inverse = query.step > 0.0f ? 1.0f / query.step : 0.0f;
  double norm = 0.0, lost = 0.0;
  std::fill_n(bytes, ByteColumns(columns), std::int8_t{0});
  for (std::int64_t x = 0; x < columns; ++x) {
    const float scaled = std::clamp(std::nearbyintf(values[x] * inverse), -127.0f, 127.0f);
    // NaN becomes 0, and the norm says so.
    bytes[x] = scaled == scaled ? static_cast<std::int8_t>(scaled) : std::int8_t{0};
    query.sum += bytes[x];
    const double value = static_cast<double>(values[x]);
    const double left = value - static_cast<double>(query.step) * bytes[x];
    norm += value * value;
    lost += left * left;
  }
  query.norm = Up(std::sqrt(norm));
  query.lost = Up(std::sqrt(lost));
  return query;
}

void PutKey(const float* values, std::int64_t columns, std::int64_t slot, std::byte* page) {
  const std::int64_t width = ByteColumns(columns);
  std::int8_t bytes[512];
  const ByteQuery key = PutQuery(values, columns, bytes);
  auto* group = reinterpret_cast<std::uint8_t*>(page) + slot / 16 * 16 * width;
  double norm = 0.0;
  for (std::int64_t x = 0; x < width; ++x) {
    group[x / 4 * 64 + slot % 16 * 4 + x % 4] = static_cast<std::uint8_t>(bytes[x] + 128);
    norm += static_cast<double>(bytes[x]) * bytes[x];
  }
  auto* tail = reinterpret_cast<float*>(page + ByteTailAt(columns)) + slot;
  const bool finite = std::isfinite(key.norm) && std::isfinite(key.lost);
  tail[0] = finite ? key.step : 0.0f;
  tail[kPage] = finite ? key.lost : std::numeric_limits<float>::infinity();
  tail[2 * kPage] = finite ? Up(static_cast<double>(key.step) * std::sqrt(norm)) : 0.0f;
}

}  // namespace tsallis::decode
