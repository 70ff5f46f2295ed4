#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "lab/nn/parameters.h"
#include "lab/studies/analyses/sparsefinder.h"
#include "tsallis/patterns.h"

namespace tsallis::lab::sparsefinder {
namespace {

using at::Tensor;
using Edges = std::function<Tensor(const Tensor& q, const Tensor& k)>;

constexpr std::int64_t kFirst = 4;          // keys for all, of the family "global"
constexpr std::int64_t kBlockClusters = 8;  // of the family "blocks"
constexpr std::int64_t kChunks[] = {1, 8, 16, 64};

// What a query sees of the joined keys, and of those that are fewer than `near` places from it.
// joined: [queries, keys] bool.
Tensor SeenOf(const Tensor& joined, Sight sight, std::int64_t near = kNear) {
  const Tensor both = sight == Sight::kOther
                          ? joined
                          : joined.logical_or(at::ones_like(joined).triu(1 - near).tril(near - 1));
  return both.logical_and(Visible(sight, joined.size(0), joined.size(1)));
}

// The centre to which each point is nearest.
Tensor Nearest(const Tensor& points, const Tensor& centres) {
  return at::cdist(points, centres).argmin(1);
}

// Centres of k-means, [clusters, numbers], from points: Lloyd's steps from drawn points. Our own,
// since these lines on points of four numbers need no index and no other start, and the libraries
// of Debian that have k-means bring OpenCV and X11 (dlib) or MPI and Boost (FLANN) into the build.
Tensor KMeans(const Tensor& points, std::int64_t clusters, RandomStream random) {
  Tensor picked = at::empty({clusters}, at::kLong);
  for (std::int64_t c = 0; c < clusters; ++c) {
    picked.mutable_data_ptr<std::int64_t>()[c] = random.Below(points.size(0));
  }
  Tensor centres = points.index_select(0, picked);
  for (int step = 0; step < 12; ++step) {
    const Tensor nearest = Nearest(points, centres);
    const Tensor sums = at::zeros_like(centres).index_add(0, nearest, points);
    const Tensor counts =
        at::zeros({clusters}).index_add(0, nearest, at::ones({points.size(0)})).unsqueeze(1);
    centres = at::where(counts > 0, sums / counts.clamp_min(1.0), centres);
  }
  return centres;
}

// ---- chunks of tokens

Tensor ChunkOf(std::int64_t n, std::int64_t chunk) { return at::arange(n).floor_divide(chunk); }

// Means of rows, chunk by chunk; the last may be shorter.
Tensor ChunkMeans(const Tensor& rows, std::int64_t chunk) {
  const std::int64_t n = rows.size(0), chunks = (n + chunk - 1) / chunk;
  const Tensor ids = ChunkOf(n, chunk);
  const Tensor counts = at::zeros({chunks}).index_add(0, ids, at::ones({n}));
  return at::zeros({chunks, rows.size(1)}).index_add(0, ids, rows) / counts.unsqueeze(1);
}

// The `count` nearest chunks of each centre: [chunks, centres] float32, 1 or 0. `own`: only among
// the chunks that have no nearer centre.
Tensor Picked(const Tensor& means, const Tensor& centres, std::int64_t count, bool own) {
  Tensor distances = at::cdist(means, centres);
  const Tensor belongs =
      own ? distances.argmin(1).unsqueeze(1).eq(at::arange(centres.size(0)).unsqueeze(0))
          : at::ones_like(distances, at::kBool);
  distances = distances.masked_fill(belongs.logical_not(), INFINITY);
  const Tensor nearest =
      std::get<1>(distances.topk(std::min(count, means.size(0)), 0, /*largest=*/false));
  return at::zeros_like(distances).scatter(0, nearest, 1.0) * belongs;
}

// Rows of length 1.
Tensor Directions(const Tensor& rows) { return rows / rows.norm(2, {1}, true).clamp_min(1e-12); }

// The sides on which each of the rows [n, head_dim] lies after `rounds` drawn rotations to half as
// many numbers as there are buckets: [rounds, n], the largest of the numbers and their negatives,
// as Reformer hashes (Kitaev, Kaiser and Levskaya 2020).
Tensor HashesOf(const Tensor& rows, const Tensor& rotations) {
  const Tensor sides = Directions(rows).matmul(rotations);  // [rounds, n, buckets / 2]
  return at::cat({sides, -sides}, 2).argmax(2);
}

}  // namespace

std::vector<Predictor> PatternsOf(Sight sight, std::int64_t n, std::uint64_t seed) {
  const bool causal = sight == Sight::kBefore;
  constexpr std::int64_t kBlock = 16;
  std::vector<Predictor> predictors;
  const auto add = [&](const char* method, std::int64_t width, const AttentionPattern& pattern) {
    // The mask of the last length: nearly all samples have the same.
    const auto last = std::make_shared<Tensor>();
    const Edges edges = [pattern, last](const Tensor& q, const Tensor& k) {
      const std::int64_t queries = q.size(0), keys = k.size(0);
      if (last->defined() && last->size(0) == queries && last->size(1) == keys) return *last;
      // Another sequence is read from its first token on, too.
      const PatternMask mask = MaskOf(pattern, queries, keys, 1, 1, Alignment::kStart);
      *last = at::zeros({queries, keys}, at::kBool);
      std::copy(mask.blocks.begin(), mask.blocks.end(), last->mutable_data_ptr<bool>());
      return *last;
    };
    predictors.push_back({"tokens", method, 1.0 * width, edges, /*fixed=*/true});
  };
  const auto sweep = [&](const char* method, const auto& pattern_of) {
    for (std::int64_t width = 4; width < n; width *= 2) add(method, width, pattern_of(width));
  };
  sweep("window",
        [=](std::int64_t width) { return AttentionPattern{.causal = causal, .window = width}; });
  sweep("Longformer", [=](std::int64_t width) { return Longformer(width, width / 4, causal); });
  sweep("BigBird",
        [=](std::int64_t width) { return BigBird(width, width / 4, causal, 3, kBlock, seed); });
  return predictors;
}

std::vector<Predictor> LearnedOf(Sight sight, const std::vector<HeadSample>& training,
                                 const Tensor& projection, bool quick, const RandomStream& random) {
  std::vector<Predictor> tokens, global, blocks;
  const auto add = [&](const std::string& method, double setting, const Edges& joined) {
    const Edges edges = [=](const Tensor& q, const Tensor& k) {
      return SeenOf(joined(q, k), sight);
    };
    tokens.push_back({"tokens", method, setting, edges});
    global.push_back({"global", fmt::format("{}, first {} for all", method, kFirst), setting,
                      [=](const Tensor& q, const Tensor& k) {
                        const Tensor first = at::arange(k.size(0)).lt(kFirst).unsqueeze(0);
                        return SeenOf(joined(q, k).logical_or(first), sight);
                      }});
  };
  // Thresholds at shares of the pairs of training.
  const HeadSample& first = training[0];
  const Tensor seen = Distances(first.q, first.k, projection)
                          .masked_select(Visible(sight, first.q.size(0), first.k.size(0)));
  const Tensor sorted = std::get<0>(seen.sort());
  for (const double share : {0.01, 0.02, 0.05, 0.1, 0.2, 0.4}) {
    const auto place = static_cast<std::int64_t>(share * (sorted.numel() - 1));
    const double limit = sorted[place].item<double>();
    add("distance", share,
        [=](const Tensor& q, const Tensor& k) { return Distances(q, k, projection) <= limit; });
  }
  // What all queries and keys of training become.
  const auto all = [&](const std::function<Tensor(const Tensor&)>& of) {
    std::vector<Tensor> parts;
    for (const HeadSample& sample : training) {
      parts.push_back(of(sample.q));
      parts.push_back(of(sample.k));
    }
    return at::cat(parts);
  };
  const auto project = [=](const Tensor& rows) { return rows.matmul(projection.t()); };
  const Tensor points = all(project);
  for (std::int64_t clusters = 2; clusters <= (quick ? 8 : 64); clusters *= 2) {
    const Tensor centres = KMeans(points, clusters, random);
    add("k-means", clusters, [=](const Tensor& q, const Tensor& k) {
      return Nearest(project(q), centres).unsqueeze(1) == Nearest(project(k), centres).unsqueeze(0);
    });
  }
  for (std::int64_t buckets = 4; buckets <= (quick ? 16 : 256); buckets *= 2) {
    // Ends of buckets that hold equally many points of training.
    const Tensor ranks = (at::arange(1, buckets) * points.size(0)).floor_divide(buckets);
    const Tensor ends = std::get<0>(points.sort(0)).index_select(0, ranks).t().contiguous();
    add("quantisation", buckets, [=](const Tensor& q, const Tensor& k) {
      const auto bucket = [&](const Tensor& rows) {
        return at::searchsorted(ends, project(rows).t().contiguous());
      };
      return (bucket(q).unsqueeze(2) == bucket(k).unsqueeze(1)).any(0);
    });
  }
  // The two known methods that the paper compares with. Neither was part of this model's training,
  // and both see whole queries and keys.
  constexpr std::int64_t kRounds = 2;
  RandomStream drawn = random;
  for (std::int64_t buckets = 4; buckets <= (quick ? 16 : 64); buckets *= 2) {
    Tensor rotations = at::empty({kRounds, first.q.size(1), buckets / 2});
    auto* values = rotations.mutable_data_ptr<float>();
    for (std::int64_t i = 0; i < rotations.numel(); ++i) {
      values[i] = static_cast<float>(Normal(drawn, 1.0));
    }
    add("Reformer", buckets, [=](const Tensor& q, const Tensor& k) {
      return HashesOf(q, rotations).unsqueeze(2).eq(HashesOf(k, rotations).unsqueeze(1)).any(0);
    });
  }
  const Tensor directions = all(Directions);
  for (std::int64_t clusters = 2; clusters <= (quick ? 8 : 32); clusters *= 2) {
    const Tensor centres = KMeans(directions, clusters, random);
    // Every centre takes equally many queries, and keys (Roy, Saffar, Vaswani and Grangier 2021).
    add("Routing", clusters, [=](const Tensor& q, const Tensor& k) {
      const auto routed = [&](const Tensor& rows) {
        const std::int64_t most = (rows.size(0) + clusters - 1) / clusters;
        return Picked(Directions(rows), centres, most, /*own=*/false);
      };
      return routed(q).matmul(routed(k).t()) > 0;
    });
  }
  // The paper's two block versions: every centre picks the nearest chunks of queries and of keys,
  // among all or among those of its cluster, and joins each with each.
  const Tensor centres = KMeans(points, kBlockClusters, random);
  for (const bool own : {false, true}) {
    for (const std::int64_t chunk : kChunks) {
      if (4 * chunk > first.q.size(0)) continue;
      for (const double share : {1.0 / 32, 1.0 / 16, 1.0 / 8, 1.0 / 4}) {
        const Edges joined = [=](const Tensor& q, const Tensor& k) {
          const auto picked = [&](const Tensor& rows) {
            const Tensor means = ChunkMeans(project(rows), chunk);
            const auto count = std::max<std::int64_t>(1, std::llround(share * means.size(0)));
            return Picked(means, centres, count, own);
          };
          return picked(q).matmul(picked(k).t()) > 0;
        };
        const Edges edges = [=](const Tensor& q, const Tensor& k) {
          return SeenOf(joined(q, k)
                            .index_select(0, ChunkOf(q.size(0), chunk))
                            .index_select(1, ChunkOf(k.size(0), chunk)),
                        sight);
        };
        const Edges of_blocks = [=](const Tensor& q, const Tensor& k) {
          // Blocks that hold a near key of a query lie this near to each other.
          return SeenOf(joined(q, k), sight, 1 + (kNear - 1 + chunk - 1) / chunk);
        };
        blocks.push_back({"blocks",
                          fmt::format("chunks of {}, {}", chunk, own ? "in clusters" : "nearest"),
                          share, edges, /*fixed=*/false, chunk, of_blocks});
      }
    }
  }
  for (std::vector<Predictor>* more : {&global, &blocks}) {
    tokens.insert(tokens.end(), more->begin(), more->end());
  }
  return tokens;
}

}  // namespace tsallis::lab::sparsefinder
