#include "attention/cpu/decode/decode.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "attention/cpu/decode/row.h"
#include "core/parallel.h"

namespace tsallis::decode {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// From here on the unit in the last place of a score in float32 is 1.
constexpr float kVast = 0x1p24f;

// The newest keys, whose scores say which distances are too large.
constexpr std::int64_t kNear = kPage;

// Pages lie apart, and the processor's own prefetchers stop at their ends: bytes of a page are
// asked for so many pages before they are needed.
constexpr std::int64_t kAhead = 2;

// The query heads that share a key head.
class Group {
 public:
  Group(const Functions& functions, const Query& query, Scratch& scratch)
      : f_(functions), query_(query), s_(scratch), all_(query.visible) {
    const bool selects = Selects();
    bool softmax = false;
    for (std::int64_t r = 0; r < query_.rows; ++r) {
      softmax = softmax || query_.map[r].softmax();
      keys_[r] = query_.visible;
      beyond_[r] = -kInfinity;
    }
    // Exact softmax reads all rows, for all heads together.
    if (softmax && query_.mode.keys == DecodeKeys::kExact) query_.byte_offset = -1;
    if (!selects) LeaveOutTheFar();
  }

  void Attend(const Context& context, Answer* answers) {
    const bool bounds = !Selects() || query_.wants_certificate;
    if (bounds) BoundAll(context);
    bool flat[kRows] = {}, dense[kRows] = {};
    for (std::int64_t r = 0; r < query_.rows; ++r) {
      Row row(f_, query_, r, s_, answers[r].out, keys_[r], beyond_[r], ProductsOf(r));
      Bounds own;
      if (bounds) own = BoundsOf(r);
      if (Selects()) {
        answers[r] = row.Selected(bounds ? &own : nullptr);
      } else if (query_.mode.keys == DecodeKeys::kWithin && query_.map[r].softmax()) {
        const std::optional<Answer> found = row.Within(own);
        flat[r] = !found.has_value();
        if (found.has_value()) answers[r] = *found;
      } else {
        const std::optional<Answer> found = row.Exact(own);
        dense[r] = !found.has_value();
        if (found.has_value()) answers[r] = *found;
      }
      answers[r].rounding_decides =
          own.product >= kVast && static_cast<double>(own.product) < kInfinity;
    }
    AnswerDense(context, dense, answers);
    SumValues(context, answers);
    ShareBytes(answers);
    if (std::any_of(flat, flat + query_.rows, [](bool is) { return is; })) {
      ReadAll(context, flat, answers);
    }
    for (std::int64_t r = 0; r < query_.rows; ++r) {
      // An answer without a key that has a score knows nothing of the map.
      if (query_.map[r].softmax()) answers[r].certificate = std::max(answers[r].certificate, 0.0);
    }
  }

 private:
  bool Selects() const {
    return query_.mode.keys != DecodeKeys::kExact && query_.mode.keys != DecodeKeys::kWithin;
  }

  // The answers of the heads of entmax that score many of their keys, from the products of all.
  void AnswerDense(const Context& context, const bool* dense, Answer* answers) {
    const auto count = std::count(dense, dense + query_.rows, true);
    if (count == 0) return;
    const std::int64_t first = std::find(dense, dense + query_.rows, true) - dense;
    std::int64_t last = query_.rows - 1;
    while (!dense[last]) --last;
    exact_ = s_.products.Reserve(query_.rows * pitch_);
    ParallelTasks(context, runs_, [&](std::int64_t run, int) {
      const Span keys = KeysOfRun(run);
      f_.dots(*query_.keys, keys.begin, keys.size(), query_.q + first * Padded(query_.head_dim),
              last - first + 1, query_.head_dim, exact_ + first * pitch_ + keys.begin - all_.begin,
              pitch_);
    });
    std::int64_t part = 0;
    for (std::int64_t r = first; r <= last; ++r) {
      if (!dense[r]) continue;
      const bool rounding_decides = answers[r].rounding_decides;
      answers[r] = *Row(f_, query_, r, s_, answers[r].out, keys_[r], beyond_[r], ProductsOf(r))
                        .Exact(BoundsOf(r));
      answers[r].rounding_decides = rounding_decides;
      answers[r].bytes_read += Part(all_.size() * RowBytes(), part++, count);
    }
  }

  // The answers of the heads of softmax that need most keys: exact, from the rows of all.
  void ReadAll(const Context& context, const bool* flat, Answer* answers) {
    query_.byte_offset = -1;
    all_ = query_.visible;
    for (std::int64_t r = 0; r < query_.rows; ++r) {
      keys_[r] = flat[r] ? query_.visible : Span{query_.visible.end, query_.visible.end};
    }
    BoundAll(context);
    for (std::int64_t r = 0; r < query_.rows; ++r) {
      if (!flat[r]) continue;
      const std::int64_t before = answers[r].bytes_read;
      answers[r] = *Row(f_, query_, r, s_, answers[r].out, keys_[r], -kInfinity).Exact(BoundsOf(r));
      answers[r].bytes_read += before;
    }
    SumValues(context, answers);
    const std::int64_t rows = all_.size() * RowBytes();
    for (std::int64_t r = 0; r < query_.rows; ++r) answers[r].bytes_read += PartOf(rows, r);
  }

  // The outputs of the rows that lack them, which have a weight for every visible key. Sums of runs
  // of keys are added in their order.
  void SumValues(const Context& context, Answer* answers) {
    std::int64_t row[kRows], rows = 0;
    for (std::int64_t r = 0; r < query_.rows; ++r) {
      if (answers[r].pending_scale != 0.0) row[rows++] = r;
    }
    if (rows == 0) return;
    const std::int64_t columns = query_.value_dim, padded = Padded(columns);
    float* sums = s_.sums.Reserve(runs_ * rows * padded);
    ParallelTasks(context, runs_, [&](std::int64_t run, int) {
      const auto [begin, end] = KeysOfRun(run);
      const float* weight[kRows] = {};
      float* sum[kRows] = {};
      for (std::int64_t i = 0; i < rows; ++i) {
        weight[i] = bounds_ + row[i] * pitch_ + begin - all_.begin;
        sum[i] = sums + (run * rows + i) * padded;
        std::fill_n(sum[i], padded, 0.0f);
      }
      f_.sums(*query_.values, begin, end - begin, weight, rows, columns, sum);
    });
    const std::int64_t bytes =
        all_.size() * columns * static_cast<std::int64_t>(SizeOf(query_.values->dtype));
    for (std::int64_t i = 0; i < rows; ++i) {
      Answer& answer = answers[row[i]];
      answer.bytes_read += Part(bytes, i, rows);
      for (std::int64_t x = 0; x < columns; ++x) {
        double total = 0.0;
        for (std::int64_t run = 0; run < runs_; ++run) {
          total += static_cast<double>(sums[(run * rows + i) * padded + x]);
        }
        answer.out[x] = static_cast<float>(total * answer.pending_scale);
      }
      answer.pending_scale = 0.0;
    }
  }

  // A product is at most the product of the norms, and the terms of a score may take so much away
  // at a distance that no key there has a weight: then none is read. That takes a few scores of
  // near keys, whose threshold is not above that of all.
  void LeaveOutTheFar() {
    const Span visible = query_.visible;
    bool any = false;
    for (std::int64_t r = 0; r < query_.rows; ++r) any = any || MayLeaveOut(r);
    if (!any || visible.size() <= 2 * kNear) return;
    float scores[kRows * kNear];
    f_.dots(*query_.keys, visible.end - kNear, kNear, query_.q, query_.rows, query_.head_dim,
            scores, kNear);
    near_ = kNear;
    for (std::int64_t r = 0; r < query_.rows; ++r) {
      if (MayLeaveOut(r)) LeaveOutTheFar(r, scores + r * kNear);
    }
    all_.begin = visible.end;
    for (std::int64_t r = 0; r < query_.rows; ++r)
      all_.begin = std::min(all_.begin, keys_[r].begin);
  }

  bool MayLeaveOut(std::int64_t r) const {
    const HeadTerms& terms = query_.terms[r];
    const Map& map = query_.map[r];
    const bool exact_softmax = map.softmax() && query_.mode.keys != DecodeKeys::kWithin;
    return !exact_softmax && std::isfinite(query_.key_norm) &&
           (terms.slope > 0.0 || terms.distances.any());
  }

  void LeaveOutTheFar(std::int64_t r, float* products) {
    const Span visible = query_.visible;
    const HeadTerms& terms = query_.terms[r];
    const Map& map = query_.map[r];
    double norm = 0.0;
    for (std::int64_t x = 0; x < query_.head_dim; ++x) {
      const auto value = static_cast<double>(query_.q[r * Padded(query_.head_dim) + x]);
      norm += value * value;
    }
    const double product = std::abs(query_.factor[r]) * std::sqrt(norm) *
                           static_cast<double>(query_.key_norm) * (1.0 + 1e-6);
    s_.scores.clear();
    for (std::int64_t i = 0; i < kNear; ++i) {
      const double x = query_.factor[r] * static_cast<double>(products[i]);
      const double score = terms.Score(x, query_.position - (visible.end - kNear + i));
      if (!std::isfinite(score)) return;
      s_.scores.push_back(score);
    }
    if (!std::isfinite(product)) return;
    const std::int64_t farthest = query_.position - visible.begin;
    const double slack =
        4.0 * kRounding * (terms.Size(product, farthest) + std::abs(s_.scores.back()) + 1.0);
    double bar = 0.0;
    if (map.softmax()) {
      // All that is left out may hold a quarter of what may be lost.
      double most = map.sink, z = 0.0;
      for (const double s : s_.scores) most = std::max(most, s);
      for (const double s : s_.scores) z += std::exp(s - most);
      const double epsilon = query_.mode.epsilon;
      bar = most + std::log(z * 0.25 * epsilon / (1.0 - epsilon)) -
            std::log(static_cast<double>(visible.size()));
    } else {
      // The key of the largest score is read also where a sink leaves it no weight, as in
      // Row::Entmax.
      bar = std::min(LeastThreshold(map, s_.scores, &s_.solve),
                     *std::max_element(s_.scores.begin(), s_.scores.end()));
    }
    bar -= slack;
    const auto ceiling = [&](std::int64_t key) {
      return terms.Ceiling(product, query_.position - key, farthest);
    };
    // The largest score of the keys up to one rises with it.
    std::int64_t low = visible.begin / kPage, high = (visible.end - kNear) / kPage;  // pages
    while (low < high) {
      const std::int64_t middle = (low + high) / 2;
      if (ceiling((middle + 1) * kPage - 1) < bar) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    keys_[r].begin = std::max(visible.begin, low * kPage);
    if (keys_[r].begin > visible.begin) beyond_[r] = ceiling(keys_[r].begin - 1);
  }

  // Bounds of the scores of all rows, and what is largest of them.
  void BoundAll(const Context& context) {
    pitch_ = all_.size() + 16;
    first_run_ = all_.begin / kRun;
    runs_ = all_.size() > 0 ? (all_.end - 1) / kRun + 1 - first_run_ : 0;
    bounds_ = s_.bounds.Reserve(query_.rows * pitch_);
    tops_ = s_.largest.Reserve(2 * query_.rows * runs_);
    products_ = tops_ + query_.rows * runs_;
    const std::int64_t padded = Padded(query_.head_dim), width = ByteColumns(query_.head_dim);
    const bool screened = query_.byte_offset >= 0;
    std::int8_t* of_rows = screened ? s_.bytes.Reserve(kRows * width) : nullptr;
    std::int16_t* wide = screened ? s_.wide.Reserve(kRows * width) : nullptr;
    ByteQuery bytes[kRows];
    double factor[kRows];
    for (std::int64_t r = 0; r < query_.rows; ++r) {
      factor[r] = query_.factor[r];
      if (!screened) continue;
      // Bounds are from above: a negative factor takes the query's sign.
      bytes[r] = PutQuery(query_.q + r * padded, query_.head_dim, of_rows + r * width);
      if (query_.factor[r] < 0.0) {
        for (std::int64_t x = 0; x < width; ++x) {
          of_rows[r * width + x] = static_cast<std::int8_t>(-of_rows[r * width + x]);
        }
        bytes[r].sum = -bytes[r].sum;
        factor[r] = -query_.factor[r];
      }
      bytes[r].wide = std::copy_n(of_rows + r * width, width, wide + r * width) - width;
    }
    // Softmax has no use for products beside its scores.
    bool keeps = !screened && !Selects();
    for (std::int64_t r = 0; r < query_.rows; ++r) keeps = keeps && !query_.map[r].softmax();
    exact_ = keeps ? s_.products.Reserve(query_.rows * pitch_) : nullptr;
    ParallelTasks(context, runs_, [&](std::int64_t run, int) {
      const auto [begin, end] = KeysOfRun(run);
      float* x = bounds_ + begin - all_.begin;
      if (screened) {
        BytesOfRun(bytes, begin, end, x);
      } else {
        float* dots = exact_ != nullptr ? exact_ + (x - bounds_) : x;
        f_.dots(*query_.keys, begin, end - begin, query_.q, query_.rows, query_.head_dim, dots,
                pitch_);
        for (std::int64_t r = 0; r < query_.rows && dots != x; ++r) {
          std::copy_n(dots + r * pitch_, end - begin, x + r * pitch_);
        }
      }
      for (std::int64_t r = 0; r < query_.rows; ++r) {
        const std::int64_t from = std::max(begin, keys_[r].begin);
        const std::int64_t at = r * runs_ + run;
        products_[at] = 0.0f;
        tops_[at] = -std::numeric_limits<float>::infinity();
        if (from >= end) continue;
        float* own = x + r * pitch_ + from - begin;
        products_[at] =
            f_.scores(query_.terms[r], factor[r], query_.position - from, end - from, own);
        tops_[at] = f_.maximum(own, static_cast<std::size_t>(end - from));
      }
    });
  }

  // Bounds from bytes of keys [begin, end); begin is at the start of a page or the first of all.
  void BytesOfRun(const ByteQuery* bytes, std::int64_t begin, std::int64_t end, float* x) const {
    alignas(64) float page_bounds[kRows * kPage];
    const std::byte* const* pages = query_.byte_pages;
    for (std::int64_t page = begin / kPage; page * kPage < end; ++page) {
      const bool more = (page + kAhead) * kPage < all_.end;
      f_.byte_bounds(pages[page] + query_.byte_offset,
                     more ? pages[page + kAhead] + query_.byte_offset : nullptr, query_.head_dim,
                     bytes, query_.rows, page_bounds, kPage);
      const std::int64_t from = std::max(begin, page * kPage);
      const std::int64_t to = std::min(end, (page + 1) * kPage);
      for (std::int64_t r = 0; r < query_.rows; ++r) {
        std::copy_n(page_bounds + r * kPage + from - page * kPage, to - from,
                    x + r * pitch_ + from - begin);
      }
    }
  }

  Span KeysOfRun(std::int64_t run) const {
    return {std::max(all_.begin, (first_run_ + run) * kRun),
            std::min(all_.end, (first_run_ + run + 1) * kRun)};
  }

  // Of keys_[r], or null.
  const float* ProductsOf(std::int64_t r) const {
    return exact_ == nullptr ? nullptr : exact_ + r * pitch_ + keys_[r].begin - all_.begin;
  }

  Bounds BoundsOf(std::int64_t r) const {
    Bounds own{.x = bounds_ + r * pitch_ + keys_[r].begin - all_.begin,
               .top = -std::numeric_limits<float>::infinity()};
    for (std::int64_t run = 0; run < runs_; ++run) {
      const float top = tops_[r * runs_ + run];
      if (!(top <= own.top)) own.top = std::isnan(own.top) ? own.top : top;
      own.product = std::max(own.product, products_[r * runs_ + run]);
    }
    return own;
  }

  // Adds to each answer its part of what the heads read together.
  void ShareBytes(Answer* answers) const {
    const auto pages = [](Span keys) {
      return keys.size() > 0 ? (keys.end - 1) / kPage + 1 - keys.begin / kPage : 0;
    };
    std::int64_t together = near_ * RowBytes();
    if (Selects()) {
      const bool of_pages = query_.mode.keys != DecodeKeys::kFirstAndLast;
      together += of_pages ? pages(query_.visible) * FactBytes(query_.head_dim) : 0;
    } else if (query_.byte_offset >= 0) {
      together += pages(all_) * PageBytes(query_.head_dim);
    } else {
      together += all_.size() * RowBytes();
    }
    for (std::int64_t r = 0; r < query_.rows; ++r) {
      answers[r].bytes_read += PartOf(together, r);
    }
  }
  std::int64_t RowBytes() const {
    return query_.head_dim * static_cast<std::int64_t>(SizeOf(query_.keys->dtype));
  }
  std::int64_t PartOf(std::int64_t bytes, std::int64_t r) const {
    return Part(bytes, r, query_.rows);
  }
  // Part i of so many parts, which sum to `bytes`.
  static std::int64_t Part(std::int64_t bytes, std::int64_t i, std::int64_t parts) {
    return bytes / parts + (i < bytes % parts ? 1 : 0);
  }

  const Functions& f_;
  Query query_;
  Scratch& s_;
  Span all_;          // what any row needs
  Span keys_[kRows];  // what a row needs
  double beyond_[kRows];
  std::int64_t near_ = 0;
  std::int64_t pitch_ = 0, first_run_ = 0, runs_ = 0;
  float* bounds_ = nullptr;    // [rows][pitch]
  float* exact_ = nullptr;     // likewise: products with the keys, where they are known, or null
  float* tops_ = nullptr;      // [rows][runs]
  float* products_ = nullptr;  // [rows][runs]
};

}  // namespace

void Attend(const Functions& functions, const Context& context, const Query& query,
            Scratch& scratch, Answer* answers) {
  Group(functions, query, scratch).Attend(context, answers);
}

}  // namespace tsallis::decode
