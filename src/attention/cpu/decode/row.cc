#include "attention/cpu/decode/row.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace tsallis::decode {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// A head with at least kRun keys scores at most one in so many on its own: the products of all
// keys, for all such heads together, take no longer.
constexpr std::size_t kFewOf = 4;

float Below(double bar) {
  return std::nextafterf(static_cast<float>(bar), -std::numeric_limits<float>::infinity());
}

}  // namespace

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

std::optional<Answer> Row::Exact(const Bounds& bounds) {
  // A bound may be infinite where the key is not a number, and that is found out.
  if (!Screened() && (std::isnan(bounds.top) || bounds.top == kInfinity)) return Broken();
  if (keys_.size() == 0 || bounds.top == -kInfinity) return Nothing(out_, query_.value_dim, 0.0);
  if (BrokenSink()) return Broken();
  return map_.softmax() ? Softmax(bounds.x, bounds.top) : Entmax(bounds);
}

Answer Row::Softmax(float* x, float top) {
  const std::int64_t n = keys_.size();
  const auto most = static_cast<float>(std::max(static_cast<double>(top), map_.sink));
  const double keys = f_.exponentials(x, static_cast<std::size_t>(n), most);
  const double sum = keys + std::exp(map_.sink - static_cast<double>(most));
  Answer answer{.out = out_,
                .maximum = static_cast<double>(top),
                .scored = n,
                .certificate = 0.0,
                .pending_scale = 1.0 / sum};
  for (std::int64_t j = 0; j < n; ++j) answer.support += x[j] > 0.0f ? 1 : 0;
  if (query_.wants_entropy) {
    for (std::int64_t j = 0; j < n; ++j) {
      const double p = static_cast<double>(x[j]) / sum;
      if (p > 0.0) answer.entropy -= p * std::log(p);
    }
  }
  answer.tau = static_cast<double>(most) + std::log(sum);
  return answer;
}

std::optional<Answer> Row::Entmax(const Bounds& bounds) {
  const double slack = Slack(bounds.top, bounds.product);
  double bar = static_cast<double>(bounds.top) - map_.Reach() - slack;
  std::size_t best = 0;
  if (Screened()) {
    // The largest bounds belong to some of the best keys; their threshold is none too high.
    best = std::min(List(bounds.x, static_cast<double>(bounds.top) - 0.25 * map_.Reach()), kBest);
    if (!Score(best)) return Broken();
    // The key of the largest score is listed also where a sink leaves it no weight: tau and maximum
    // need it.
    const double most = LargestScore();
    bar = most > -kInfinity ? std::min(LeastThreshold(map_, s_.scores, &s_.solve), most) - slack
                            : -kInfinity;
  }
  const std::size_t count = List(bounds.x, bar);
  const bool many = keys_.size() >= kRun && count > static_cast<std::size_t>(keys_.size()) / kFewOf;
  if (many && products_ == nullptr) return std::nullopt;
  if (!Score(count)) return Broken();
  if (LargestScore() == -kInfinity) {
    Answer answer = Nothing(out_, query_.value_dim, 0.0);
    answer.scored = static_cast<std::int64_t>(count);
    answer.bytes_read = BytesOfRows(std::max(count, best), 0);
    return answer;
  }
  Answer answer = SolvedEntmax(count);
  if (products_ != nullptr || !Screened()) {
    answer.bytes_read -= BytesOfRows(count, 0);  // they were read together
  }
  if (Screened() && best > count) answer.bytes_read += BytesOfRows(best - count, 0);
  if (query_.wants_certificate && answer.scored < query_.visible.size()) {
    const double unscored =
        count < static_cast<std::size_t>(keys_.size()) ? Unscored(bounds.x, bar) : -kInfinity;
    answer.certificate = (map_.alpha - 1.0) * (std::max(unscored, beyond_) + slack) - answer.tau;
  }
  return answer;
}

Answer Row::SolvedEntmax(std::size_t count) {
  Answer answer{.out = out_, .maximum = LargestScore(), .scored = static_cast<std::int64_t>(count)};
  answer.tau = Solve(map_, s_.scores, &s_.solve);
  const float* p = s_.solve.p.get();
  std::uint32_t* index = s_.listed.get();
  std::size_t support = 0;
  float* weights = s_.weights.Reserve(static_cast<std::int64_t>(count) + 16);
  for (std::size_t i = 0; i < count; ++i) {
    index[support] = index[i];
    weights[support] = p[i];
    support += p[i] > 0.0f ? 1 : 0;
  }
  if (query_.wants_entropy) {
    for (std::size_t i = 0; i < support; ++i) {
      const auto weight = static_cast<double>(weights[i]);
      answer.entropy -= weight * std::log(weight);
    }
  }
  answer.support = static_cast<std::int64_t>(support);
  f_.gather_sum(*query_.values, index, weights, support, query_.value_dim, out_);
  answer.bytes_read = BytesOfRows(count, support);
  return answer;
}

Answer Row::SolvedSoftmax(std::size_t count) {
  Answer answer{.out = out_, .maximum = LargestScore(), .scored = static_cast<std::int64_t>(count)};
  const double most = std::max(answer.maximum, map_.sink);
  double sum = std::exp(map_.sink - most);
  for (double& s : s_.scores) sum += s = std::exp(s - most);
  std::uint32_t* index = s_.listed.get();
  std::size_t support = 0;
  float* weights = s_.weights.Reserve(static_cast<std::int64_t>(count) + 16);
  for (std::size_t i = 0; i < count; ++i) {
    const double p = s_.scores[i] / sum;
    const auto weight = static_cast<float>(p);
    if (!(weight > 0.0f)) continue;
    index[support] = index[i];
    weights[support++] = weight;
    if (query_.wants_entropy) answer.entropy -= p * std::log(p);
  }
  answer.support = static_cast<std::int64_t>(support);
  answer.tau = most + std::log(sum);
  f_.gather_sum(*query_.values, index, weights, support, query_.value_dim, out_);
  answer.bytes_read = BytesOfRows(count, support);
  return answer;
}

double Row::LargestScore() const {
  // Four at a time wait for no other.
  constexpr std::size_t kLanes = 4;
  const std::size_t whole = s_.scores.size() / kLanes * kLanes;
  double most[kLanes] = {-kInfinity, -kInfinity, -kInfinity, -kInfinity};
  for (std::size_t i = 0; i < whole; i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      most[lane] = std::max(most[lane], s_.scores[i + lane]);
    }
  }
  for (std::size_t i = whole; i < s_.scores.size(); ++i) most[0] = std::max(most[0], s_.scores[i]);
  return *std::max_element(most, most + kLanes);
}

double Row::Slack(float top, float product) const {
  // The terms of a score that comes near the largest are not much larger than its product.
  const std::int64_t farthest = std::max(std::abs(query_.position - query_.visible.begin),
                                         std::abs(query_.position - query_.visible.end + 1));
  const double reach = map_.softmax() ? 0.0 : map_.Reach();
  const double size = query_.terms[r_].Size(static_cast<double>(product), farthest) +
                      std::abs(static_cast<double>(top)) + reach;
  return 2.0 * kRounding * size;
}

std::size_t Row::List(const float* bounds, double bar) {
  const std::int64_t n = keys_.size();
  std::uint32_t* index = s_.listed.Reserve(n + 16);
  // NaN is not below anything.
  const float least = std::isnan(bar) ? -std::numeric_limits<float>::infinity() : Below(bar);
  return f_.at_least(bounds, static_cast<std::size_t>(n), least,
                     static_cast<std::uint32_t>(keys_.begin), index);
}

double Row::Unscored(const float* bounds, double bar) const {
  const float least = Below(bar);
  float most = -std::numeric_limits<float>::infinity();
  for (std::int64_t j = 0; j < keys_.size(); ++j) {
    if (bounds[j] < least) most = std::max(most, bounds[j]);
  }
  return static_cast<double>(most);
}

bool Row::Score(const std::uint32_t* index, std::size_t count, double* scores) {
  const HeadTerms& terms = query_.terms[r_];
  float* dots = s_.dots.Reserve(static_cast<std::int64_t>(count) + 16);
  if (products_ != nullptr) {
    const auto first = static_cast<std::uint32_t>(keys_.begin);
    for (std::size_t i = 0; i < count; ++i) dots[i] = products_[index[i] - first];
  } else {
    f_.gather_dots(*query_.keys, index, count, query_.q + r_ * Padded(query_.head_dim),
                   query_.head_dim, dots);
  }
  const double factor = query_.factor[r_];
  for (std::size_t i = 0; i < count; ++i) scores[i] = factor * static_cast<double>(dots[i]);
  if (terms.any()) {
    for (std::size_t i = 0; i < count; ++i) {
      scores[i] = terms.Score(scores[i], query_.position - index[i]);
    }
  }
  std::size_t broken = 0;
  for (std::size_t i = 0; i < count; ++i) broken += scores[i] < kInfinity ? 0 : 1;  // or NaN
  return broken == 0;
}

std::int64_t Row::BytesOfRows(std::size_t keys, std::size_t values) const {
  const auto element = static_cast<std::int64_t>(SizeOf(query_.keys->dtype));
  return (static_cast<std::int64_t>(keys) * query_.head_dim +
          static_cast<std::int64_t>(values) * query_.value_dim) *
         element;
}

}  // namespace tsallis::decode
