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

using Sequence = DecodingState::Sequence;

// Prompts whose beams are decoded together.
constexpr std::size_t kTogether = 32;

std::int64_t StepsOf(const Prompt& prompt, const GenerateOptions& options) {
  return prompt.steps > 0 ? std::min(prompt.steps, options.steps) : options.steps;
}

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

Read ReadPrompts(DecodingState& decoding, const std::vector<Prompt>& prompts) {
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
      first.push_back(decoding.Create());
    }
    of_prompt.push_back(at->second);
  }
  // One at a time, so that the bits behind a prompt do not depend on the others.
  std::vector<at::Tensor> logits;
  for (std::size_t i = 0; i < first.size(); ++i) {
    logits.push_back(decoding.Extend({first[i]}, {texts[i]}));
  }
  Read read;
  std::vector<bool> taken(first.size(), false);
  for (const std::int64_t i : of_prompt) {
    const auto index = static_cast<std::size_t>(i);
    read.sequences.push_back(taken[index] ? decoding.Fork(first[index]) : first[index]);
    taken[index] = true;
  }
  read.logits = at::cat(logits).index_select(0, at::tensor(of_prompt, at::kLong));
  return read;
}

std::vector<Written> Sampled(DecodingState& decoding, const std::vector<Prompt>& prompts,
                             const GenerateOptions& options) {
  Read read = ReadPrompts(decoding, prompts);
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
      ended = ended || step + 1 >= StepsOf(prompts[i], options);
      texts[i].tokens.push_back(token);
      if (options.each) options.each(i, token);
      if (ended) {
        decoding.Free(read.sequences[i]);
        continue;
      }
      next_alive.push_back(i);
      sequences.push_back(read.sequences[i]);
      tokens.push_back({token});
    }
    alive = std::move(next_alive);
    if (step + 1 == options.steps || alive.empty() || Stopped(options)) break;
    read.logits = decoding.Extend(sequences, tokens);
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

// A token behind a beam.
struct Candidate {
  double log_likelihood;
  std::size_t beam;
  std::int64_t token;
};
bool Likelier(const Candidate& a, const Candidate& b) {
  return a.log_likelihood > b.log_likelihood;
}

// The `wanted` likeliest of all, the likeliest first. logits: of each beam, [beams, vocabulary].
std::vector<Candidate> Likeliest(const std::vector<Beam>& beams, const float* logits,
                                 std::int64_t vocabulary, std::size_t wanted) {
  std::vector<Candidate> kept;  // a heap: the least likely is in front
  for (std::size_t b = 0; b < beams.size(); ++b, logits += vocabulary) {
    CheckLogits(logits, vocabulary);
    const double before = beams[b].text.log_likelihood - LogSumExp(logits, vocabulary);
    for (std::int64_t token = 0; token < vocabulary; ++token) {
      const Candidate candidate{before + static_cast<double>(logits[token]), b, token};
      if (kept.size() == wanted) {
        if (!Likelier(candidate, kept.front())) continue;
        std::pop_heap(kept.begin(), kept.end(), Likelier);
        kept.pop_back();
      }
      kept.push_back(candidate);
      std::push_heap(kept.begin(), kept.end(), Likelier);
    }
  }
  std::sort_heap(kept.begin(), kept.end(), Likelier);
  return kept;
}

// The beams of one prompt: a search over the likeliest texts of every length.
class Search {
 public:
  Search(Sequence sequence, std::int64_t steps, const GenerateOptions& options)
      : options_(options),
        steps_(steps),
        width_(static_cast<std::size_t>(options.beams)),
        beams_(1) {
    beams_[0].sequence = sequence;
  }

  // Texts that go on.
  const std::vector<Beam>& Beams() const { return beams_; }

  // Step `step` from the logits behind every beam.
  void Advance(DecodingState& decoding, const float* logits, std::int64_t vocabulary,
               std::int64_t step) {
    std::vector<Beam> next;
    // Each beam has one candidate that ends it, so twice the width leaves enough that go on.
    const std::vector<Candidate> candidates = Likeliest(beams_, logits, vocabulary, 2 * width_);
    for (std::size_t i = 0; i < candidates.size() && next.size() < width_; ++i) {
      const Candidate& candidate = candidates[i];
      Beam beam{beams_[candidate.beam].text, -1};
      beam.text.tokens.push_back(candidate.token);
      beam.text.log_likelihood = candidate.log_likelihood;
      ++beam.text.said;
      if (options_.end && candidate.token == *options_.end) {
        if (i < width_) finished_.push_back(std::move(beam));
        continue;
      }
      beam.sequence = decoding.Fork(beams_[candidate.beam].sequence);
      next.push_back(std::move(beam));
    }
    for (const Beam& beam : beams_) decoding.Free(beam.sequence);
    beams_ = std::move(next);
    if (step + 1 >= steps_ || IsDecided()) End(decoding);
  }

  // Texts that go on count where the steps ran out.
  void End(DecodingState& decoding) {
    for (const Beam& beam : beams_) decoding.Free(beam.sequence);
    finished_.insert(finished_.end(), beams_.begin(), beams_.end());
    beams_.clear();
  }

  // The likeliest by token; after the end.
  Written Best() const {
    if (finished_.empty()) return {};
    return std::max_element(
               finished_.begin(), finished_.end(),
               [](const Beam& a, const Beam& b) { return a.PerToken() < b.PerToken(); })
        ->text;
  }

 private:
  // Whether as many texts have ended as there are beams, and each is as likely by token as those
  // that go on, which seldom become likelier.
  bool IsDecided() {
    if (beams_.empty() || finished_.size() < width_) return false;
    std::stable_sort(finished_.begin(), finished_.end(),
                     [](const Beam& a, const Beam& b) { return a.PerToken() > b.PerToken(); });
    finished_.resize(width_);
    return finished_.back().PerToken() >= beams_.front().PerToken();
  }

  const GenerateOptions& options_;
  std::int64_t steps_;
  std::size_t width_;
  std::vector<Beam> beams_, finished_;
};

// Searches for the prompts that are decoded together.
std::vector<Written> Searched(DecodingState& decoding, const std::vector<Prompt>& prompts,
                              const GenerateOptions& options) {
  Read read = ReadPrompts(decoding, prompts);
  const std::int64_t vocabulary = read.logits.size(1);
  std::vector<Search> searches;
  searches.reserve(prompts.size());
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    searches.emplace_back(read.sequences[i], StepsOf(prompts[i], options), options);
  }
  for (std::int64_t step = 0; step < options.steps; ++step) {
    const float* logits = read.logits.const_data_ptr<float>();
    std::vector<Sequence> sequences;
    std::vector<std::vector<std::int64_t>> tokens;
    for (Search& search : searches) {
      const auto rows = static_cast<std::int64_t>(search.Beams().size());
      if (rows == 0) continue;
      search.Advance(decoding, logits, vocabulary, step);
      logits += rows * vocabulary;
      for (const Beam& beam : search.Beams()) {
        sequences.push_back(beam.sequence);
        tokens.push_back({beam.text.tokens.back()});
      }
    }
    if (sequences.empty() || Stopped(options)) break;
    read.logits = decoding.Extend(sequences, tokens).contiguous();
  }
  std::vector<Written> texts;
  for (Search& search : searches) {
    search.End(decoding);
    texts.push_back(search.Best());
  }
  return texts;
}

}  // namespace

std::vector<Written> Generate(SequenceModel& model, const std::vector<Prompt>& prompts,
                              const GenerateOptions& options) {
  const std::unique_ptr<DecodingState> decoding = model.StartDecoding(options.max_bytes);
  if (prompts.empty()) return {};
  if (options.beams <= 1) {
    CheckSampler(options.sampler);
    return Sampled(*decoding, prompts, options);
  }
  std::vector<Written> texts;
  for (const Prompt& prompt : prompts) {
    if (std::any_of(prompt.given.begin(), prompt.given.end(),
                    [](std::int64_t token) { return token != kFree; })) {
      throw UsageError("--beams: expected 1 where parts of the answer are given");
    }
  }
  // Where memory is short, one at a time.
  const std::size_t together = options.max_bytes > 0 ? 1 : kTogether;
  for (std::size_t first = 0; first < prompts.size() && !Stopped(options); first += together) {
    const auto begin = prompts.begin() + static_cast<std::ptrdiff_t>(first);
    const auto count = static_cast<std::ptrdiff_t>(std::min(together, prompts.size() - first));
    for (Written& text : Searched(*decoding, {begin, begin + count}, options)) {
      texts.push_back(std::move(text));
    }
  }
  texts.resize(prompts.size());
  return texts;
}

}  // namespace tsallis::lab
