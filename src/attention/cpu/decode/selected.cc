// The approximations: keys are chosen by little that is known of their pages, or by their place,
// and the answer is that of the chosen keys alone.
//
// Quest (Tang et al. 2024, section 3.2) ranks pages by a bound of their scores out of the least and
// largest numbers of every column, sum_c max(q_c least_c, q_c most_c). EntmaxKV (2026) takes the
// keys of a page as normal with independent columns, so that its scores have the mean <q, mean> and
// the variance sum_c q_c^2 var_c, and looks at a quantile of the largest of them; it takes the
// pages above a threshold that it models, where this takes as many as the budget allows. Terms of
// distance enter both: the bound at the distance that is best for it, the quantile at a page's
// middle.
#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "attention/cpu/decode/row.h"

namespace tsallis::decode {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// The largest product of a query with a key of these ranges; NaN if one is not finite.
float RangeBound(const PageFacts& facts, const float* q, std::int64_t columns) {
  constexpr std::int64_t kLanes = 16;
  float sum[kLanes] = {}, broken[kLanes] = {};
  std::int64_t x = 0;
  const auto add = [&](std::int64_t lane, std::int64_t at) {
    const float a = q[at] * facts.first[at], b = q[at] * facts.second[at];
    sum[lane] += a < b ? b : a;
    broken[lane] += 0.0f * (a + b);
  };
  for (; x + kLanes <= columns; x += kLanes) {
    for (std::int64_t lane = 0; lane < kLanes; ++lane) add(lane, x + lane);
  }
  for (; x < columns; ++x) add(0, x);
  float total = 0.0f;
  for (std::int64_t lane = 0; lane < kLanes; ++lane) total += sum[lane] + broken[lane];
  return total;
}

// The quantile of the largest of a full page's products that is `deviations` above the mean.
float MomentQuantile(const PageFacts& facts, const float* q, std::int64_t columns,
                     double deviations) {
  constexpr std::int64_t kLanes = 16;
  float mean[kLanes] = {}, squares[kLanes] = {};
  std::int64_t x = 0;
  const auto add = [&](std::int64_t lane, std::int64_t at) {
    mean[lane] += q[at] * facts.first[at];
    squares[lane] += q[at] * q[at] * facts.second[at];
  };
  for (; x + kLanes <= columns; x += kLanes) {
    for (std::int64_t lane = 0; lane < kLanes; ++lane) add(lane, x + lane);
  }
  for (; x < columns; ++x) add(0, x);
  double total = 0.0, variance = 0.0;
  for (std::int64_t lane = 0; lane < kLanes; ++lane) {
    total += static_cast<double>(mean[lane]);
    variance += static_cast<double>(squares[lane]) / kPage;
  }
  return static_cast<float>(total + deviations * std::sqrt(variance));
}

// How many standard deviations the quantile of the largest of a page's normal numbers lies above
// their mean.
double DeviationsOfLargest(double quantile) {
  const double wanted = std::pow(quantile, 1.0 / kPage);
  double low = -40.0, high = 40.0;
  for (int step = 0; step < 100; ++step) {
    const double middle = 0.5 * (low + high);
    (0.5 * std::erfc(-middle * std::sqrt(0.5)) < wanted ? low : high) = middle;
  }
  return 0.5 * (low + high);
}

}  // namespace

std::size_t Row::ChoosePages() {
  const Span visible = query_.visible;
  const HeadTerms& terms = query_.terms[r_];
  const bool by_ranges = query_.mode.keys == DecodeKeys::kTopPages;
  const double deviations = by_ranges ? 0.0 : DeviationsOfLargest(query_.mode.quantile);
  const double factor = query_.factor[r_];
  const std::int64_t columns = query_.head_dim;
  std::vector<float> q(static_cast<std::size_t>(columns));
  for (std::int64_t x = 0; x < columns; ++x) {
    const float value = query_.q[r_ * Padded(columns) + x];
    q[static_cast<std::size_t>(x)] = factor < 0.0 ? -value : value;
  }
  const std::int64_t first = visible.begin / kPage, newest = (visible.end - 1) / kPage;
  std::vector<std::pair<double, std::int64_t>> ranks;  // minus the rank, so that the best is first
  ranks.reserve(static_cast<std::size_t>(newest - first));
  for (std::int64_t page = first; page < newest; ++page) {
    const std::int64_t begin = std::max(visible.begin, page * kPage), end = (page + 1) * kPage;
    const std::byte* data = query_.keys->pages[page];
    double rank = 0.0;
    if (by_ranges) {
      const PageFacts facts = FactsAt(data + query_.range_offset, columns);
      rank = terms.Ceiling(
          std::abs(factor) * static_cast<double>(RangeBound(facts, q.data(), columns)),
          query_.position - end + 1, query_.position - begin);
    } else {
      const PageFacts facts = FactsAt(data + query_.moment_offset, columns);
      const float product = MomentQuantile(facts, q.data(), columns, deviations);
      rank = terms.Score(std::abs(factor) * static_cast<double>(product),
                         query_.position - (begin + end - 1) / 2);
    }
    // A page with a key that is not finite comes first.
    ranks.emplace_back(std::isfinite(rank) ? -rank : -kInfinity, page);
  }
  const auto most = static_cast<std::size_t>(query_.mode.budget / kPage);
  const std::size_t kept = std::min(ranks.size(), most > 0 ? most - 1 : 0);
  std::nth_element(ranks.begin(), ranks.begin() + static_cast<std::ptrdiff_t>(kept), ranks.end());
  std::vector<std::int64_t> pages{newest};
  for (std::size_t i = 0; i < kept; ++i) pages.push_back(ranks[i].second);
  std::sort(pages.begin(), pages.end());
  std::uint32_t* index = s_.listed.Reserve(static_cast<std::int64_t>(pages.size()) * kPage + 16);
  std::size_t count = 0;
  for (const std::int64_t page : pages) {
    const std::int64_t end = std::min(visible.end, (page + 1) * kPage);
    for (std::int64_t j = std::max(visible.begin, page * kPage); j < end; ++j) {
      index[count++] = static_cast<std::uint32_t>(j);
    }
  }
  return count;
}

std::size_t Row::Choose() {
  if (query_.mode.keys != DecodeKeys::kFirstAndLast) return ChoosePages();
  const Span visible = query_.visible;
  const std::int64_t budget = std::min(query_.mode.budget, visible.size());
  const std::int64_t first = std::min(query_.mode.first, budget - 1);
  std::uint32_t* index = s_.listed.Reserve(budget + 16);
  for (std::int64_t i = 0; i < budget; ++i) {
    const std::int64_t j = i < first ? visible.begin + i : visible.end - budget + i;
    index[i] = static_cast<std::uint32_t>(j);
  }
  return static_cast<std::size_t>(budget);
}

Answer Row::Selected(const Bounds* bounds) {
  if (query_.visible.size() == 0) return Nothing(out_, query_.value_dim, 0.0);
  if (BrokenSink()) return Broken();
  const std::size_t count = Choose();
  std::vector<std::uint32_t> read;
  if (bounds != nullptr || query_.wants_lost) {
    read.assign(s_.listed.get(), s_.listed.get() + count);
  }
  if (!Score(count)) return Broken();
  Answer answer;
  if (LargestScore() == -kInfinity) {
    answer = Nothing(out_, query_.value_dim, 0.0);
    answer.bytes_read = BytesOfRows(count, 0);
  } else {
    answer = map_.softmax() ? SolvedSoftmax(count) : SolvedEntmax(count);
  }
  answer.scored = static_cast<std::int64_t>(count);
  if (bounds != nullptr) answer.certificate = Certificate(*bounds, read, answer);
  if (query_.wants_lost) answer.lost = Lost(read);
  return answer;
}

double Row::Certificate(const Bounds& bounds, const std::vector<std::uint32_t>& read,
                        const Answer& answer) const {
  const bool softmax = map_.softmax();
  if (static_cast<std::int64_t>(read.size()) == keys_.size()) return softmax ? 0.0 : -kInfinity;
  if (!std::isfinite(bounds.top)) {
    // It may be that of a key that was not read.
    if (bounds.top != -std::numeric_limits<float>::infinity()) return softmax ? 1.0 : kInfinity;
    return softmax ? 0.0 : -kInfinity;
  }
  const double slack = Slack(bounds.top, bounds.product);
  double most = -kInfinity, mass = 0.0;
  std::size_t next = 0;
  for (std::int64_t j = 0; j < keys_.size(); ++j) {
    if (next < read.size() && static_cast<std::int64_t>(read[next]) == keys_.begin + j) {
      ++next;
      continue;
    }
    const double bound = static_cast<double>(bounds.x[j]) + slack;
    most = std::max(most, bound);
    // tau is the logarithm of what was read.
    if (softmax) mass += std::exp(bound - answer.tau);
  }
  if (!softmax) return (map_.alpha - 1.0) * most - answer.tau;
  mass *= std::exp(slack);
  return std::isinf(mass) ? 1.0 : mass / (1.0 + mass);
}

double Row::Lost(const std::vector<std::uint32_t>& read) {
  const std::int64_t n = query_.visible.size();
  std::vector<std::uint32_t> index(static_cast<std::size_t>(n));
  for (std::int64_t j = 0; j < n; ++j) {
    index[static_cast<std::size_t>(j)] = static_cast<std::uint32_t>(query_.visible.begin + j);
  }
  s_.scores.resize(index.size());
  if (!Score(index.data(), index.size(), s_.scores.data())) return std::nan("");
  const double top = std::max(LargestScore(), map_.sink);
  if (top == -kInfinity) return 0.0;
  std::vector<double> p(index.size());
  if (map_.softmax()) {
    double sum = std::exp(map_.sink - top);
    for (std::size_t j = 0; j < p.size(); ++j) sum += p[j] = std::exp(s_.scores[j] - top);
    for (double& weight : p) weight /= sum;
  } else {
    Solve(map_, s_.scores, &s_.solve);
    std::copy_n(s_.solve.p.get(), p.size(), p.begin());
  }
  for (const std::uint32_t j : read) p[j - static_cast<std::uint32_t>(query_.visible.begin)] = 0.0;
  double lost = 0.0;
  for (const double weight : p) lost += weight;
  return lost;
}

}  // namespace tsallis::decode
