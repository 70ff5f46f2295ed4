#include "lab/generate/generate.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <numeric>
#include <utility>

#include "lab/base/errors.h"

namespace tsallis::lab {
namespace {

using Sequence = GrowingSequences::Sequence;

bool Stopped(const GenerateOptions& options) {
  return options.stop != nullptr && options.stop->load();
}

double LogSumExp(const float* logits, std::int64_t count) {
  const double top = *std::max_element(logits, logits + count);
  double sum = 0.0;
  for (std::int64_t i = 0; i < count; ++i) sum += std::exp(static_cast<double>(logits[i]) - top);
  return top + std::log(sum);
}

// Prompts in a cache, and the logits behind each: [prompts, vocabulary]. Equal ones are read once.
struct Read {
  std::vector<Sequence> sequences;
  at::Tensor logits;
};

Read ReadPrompts(GrowingSequences& cache, const std::vector<Prompt>& prompts) {
  std::map<std::vector<std::int64_t>, std::int64_t> distinct;
  std::vector<std::vector<std::int64_t>> texts;
  std::vector<Sequence> first;
  std::vector<std::int64_t> of_prompt;
  for (const Prompt& prompt : prompts) {
    if (prompt.tokens.empty()) throw UsageError("a prompt: expected one token or more, got none");
    const auto [at, is_new] =
        distinct.emplace(prompt.tokens, static_cast<std::int64_t>(texts.size()));
    if (is_new) {
      texts.push_back(prompt.tokens);
      first.push_back(cache.Create());
    }
    of_prompt.push_back(at->second);
  }
  // One at a time, so that the bits behind a prompt do not depend on the others.
  std::vector<at::Tensor> logits;
  for (std::size_t i = 0; i < first.size(); ++i) {
    logits.push_back(cache.Extend({first[i]}, {texts[i]}));
  }
  Read read;
  std::vector<bool> taken(first.size(), false);
  for (const std::int64_t i : of_prompt) {
    const auto index = static_cast<std::size_t>(i);
    read.sequences.push_back(taken[index] ? cache.Fork(first[index]) : first[index]);
    taken[index] = true;
  }
  read.logits = at::cat(logits).index_select(0, at::tensor(of_prompt, at::kLong));
  return read;
}

std::vector<Written> Sampled(GrowingSequences& cache, const std::vector<Prompt>& prompts,
                             const GenerateOptions& options) {
  Read read = ReadPrompts(cache, prompts);
  const std::int64_t vocabulary = read.logits.size(1);
  std::vector<Written> texts(prompts.size());
  std::vector<std::size_t> alive(prompts.size());  // the prompt of each row of logits
  std::iota(alive.begin(), alive.end(), std::size_t{0});
  for (std::int64_t step = 0; step < options.steps && !alive.empty(); ++step) {
    std::vector<std::size_t> next_alive;
    std::vector<Sequence> sequences;
    std::vector<std::vector<std::int64_t>> tokens;
    for (std::size_t row = 0; row < alive.size(); ++row) {
      const std::size_t i = alive[row];
      const auto index = static_cast<std::size_t>(step);
      const std::vector<std::int64_t>& given = prompts[i].given;
      std::int64_t token = index < given.size() ? given[index] : kFree;
      bool ended = false;
      if (token == kFree) {
        const float* logits =
            read.logits.const_data_ptr<float>() + static_cast<std::int64_t>(row) * vocabulary;
        const std::vector<double> weights = TokenWeights(logits, vocabulary, options.sampler);
        const double u = SampleNumber(options.sampler.seed, static_cast<std::int64_t>(i), step);
        token = TokenAt(weights, u);
        texts[i].log_likelihood +=
            static_cast<double>(logits[token]) - LogSumExp(logits, vocabulary);
        ++texts[i].said;
        ended = options.end && token == *options.end;
      }
      texts[i].tokens.push_back(token);
      if (options.each) options.each(i, token);
      if (ended) {
        cache.Free(read.sequences[i]);
        continue;
      }
      next_alive.push_back(i);
      sequences.push_back(read.sequences[i]);
      tokens.push_back({token});
    }
    alive = std::move(next_alive);
    if (step + 1 == options.steps || alive.empty() || Stopped(options)) break;
    read.logits = cache.Extend(sequences, tokens);
  }
  return texts;
}

struct Beam {
  Written text;
  Sequence sequence = -1;
  double PerToken() const {
    return text.log_likelihood / std::max(1.0, static_cast<double>(text.said));
  }
};

// The beams of one prompt: a search over the `width` likeliest texts of every length.
Written Searched(GrowingSequences& cache, const Prompt& prompt, const GenerateOptions& options) {
  const auto width = static_cast<std::size_t>(options.beams);
  Read read = ReadPrompts(cache, {prompt});
  const std::int64_t vocabulary = read.logits.size(1);
  std::vector<Beam> beams(1), finished;
  beams[0].sequence = read.sequences[0];
  struct Candidate {
    double log_likelihood;
    std::size_t beam;
    std::int64_t token;
  };
  for (std::int64_t step = 0; step < options.steps; ++step) {
    std::vector<Candidate> candidates;
    for (std::size_t b = 0; b < beams.size(); ++b) {
      const float* logits =
          read.logits.const_data_ptr<float>() + static_cast<std::int64_t>(b) * vocabulary;
      const double total = LogSumExp(logits, vocabulary);
      for (std::int64_t token = 0; token < vocabulary; ++token) {
        candidates.push_back(
            {beams[b].text.log_likelihood + static_cast<double>(logits[token]) - total, b, token});
      }
    }
    // Enough that as many go on if all that could end do.
    const std::size_t wanted = std::min(candidates.size(), 2 * width);
    std::partial_sort(candidates.begin(), candidates.begin() + static_cast<std::ptrdiff_t>(wanted),
                      candidates.end(), [](const Candidate& a, const Candidate& b) {
                        return a.log_likelihood > b.log_likelihood;
                      });
    std::vector<Beam> next;
    for (std::size_t i = 0; i < wanted && next.size() < width; ++i) {
      const Candidate& candidate = candidates[i];
      Beam beam{beams[candidate.beam].text, -1};
      beam.text.tokens.push_back(candidate.token);
      beam.text.log_likelihood = candidate.log_likelihood;
      ++beam.text.said;
      if (options.end && candidate.token == *options.end) {
        if (i < width) finished.push_back(std::move(beam));
        continue;
      }
      beam.sequence = cache.Fork(beams[candidate.beam].sequence);
      next.push_back(std::move(beam));
    }
    for (const Beam& beam : beams) cache.Free(beam.sequence);
    beams = std::move(next);
    if (beams.empty() || step + 1 == options.steps || Stopped(options)) break;
    if (finished.size() >= width) {
      // No beam can end better than the worst that is kept: a token's likelihood is at most 1.
      std::stable_sort(finished.begin(), finished.end(),
                       [](const Beam& a, const Beam& b) { return a.PerToken() > b.PerToken(); });
      finished.resize(width);
      const double best = beams.front().text.log_likelihood / static_cast<double>(options.steps);
      if (finished.back().PerToken() >= best) break;
    }
    std::vector<Sequence> sequences;
    std::vector<std::vector<std::int64_t>> tokens;
    for (const Beam& beam : beams) {
      sequences.push_back(beam.sequence);
      tokens.push_back({beam.text.tokens.back()});
    }
    read.logits = cache.Extend(sequences, tokens);
  }
  for (const Beam& beam : beams) cache.Free(beam.sequence);
  // Texts that go on count where the steps ran out.
  finished.insert(finished.end(), beams.begin(), beams.end());
  if (finished.empty()) return {};
  return std::max_element(finished.begin(), finished.end(),
                          [](const Beam& a, const Beam& b) { return a.PerToken() < b.PerToken(); })
      ->text;
}

}  // namespace

std::vector<Written> Generate(SequenceModel& model, const std::vector<Prompt>& prompts,
                              const GenerateOptions& options) {
  const std::unique_ptr<GrowingSequences> cache = model.Grow(options.max_bytes);
  if (prompts.empty()) return {};
  if (options.beams <= 1) {
    CheckSampler(options.sampler);
    return Sampled(*cache, prompts, options);
  }
  std::vector<Written> texts;
  for (const Prompt& prompt : prompts) {
    if (std::any_of(prompt.given.begin(), prompt.given.end(),
                    [](std::int64_t token) { return token != kFree; })) {
      throw UsageError("--beams: expected 1 where parts of the answer are given");
    }
    texts.push_back(Searched(*cache, prompt, options));
    if (Stopped(options)) break;
  }
  texts.resize(prompts.size());
  return texts;
}

}  // namespace tsallis::lab
