#include "lab/text/pairs.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "lab/base/errors.h"
#include "lab/base/special_tokens.h"

namespace tsallis::lab {
namespace {

// Orders of epochs that are kept: four bytes a pair each.
constexpr std::size_t kEpochs = 8;

}  // namespace

const Corpus& TextPairs::Opened() const {
  std::call_once(once_, [&] {
    corpus_ = OpenCorpus(name_, vocabulary_, /*pairs=*/true);
    for (const Split split : {Split::kTrain, Split::kValidation, Split::kTest}) Find(split);
  });
  return *corpus_;
}

void TextPairs::Find(Split split) const {
  const SpecialTokens special{corpus_->Vocabulary()};
  const Corpus::Part& part = corpus_->Of(split);
  std::vector<Place>& places = places_[static_cast<int>(split)];
  constexpr std::int64_t kPiece = 1 << 20;
  std::int64_t begin = 0, sep = -1, at = 0;
  const auto expect = [&](bool right) {
    if (right) return;
    throw UsageError(fmt::format("corpus {}: its {} part is no row of pairs at token {}", name_,
                                 PartName(split), at));
  };
  while (at < part.size()) {
    for (const std::int64_t token : part.Read(at, std::min(kPiece, part.size() - at))) {
      if (token == special.Sep()) {
        expect(sep < 0);
        sep = at;
      } else if (token == special.Eos()) {
        expect(sep >= 0);
        places.push_back({begin, sep - begin, at - sep - 1});
        begin = at + 1;
        sep = -1;
      } else {
        expect(token < special.data);
      }
      ++at;
    }
  }
  expect(begin == at);
}

std::shared_ptr<const TextPairs::Order> TextPairs::Within(Split split,
                                                          const PairLimits& limits) const {
  Opened();
  const auto part = static_cast<std::size_t>(split);
  const std::lock_guard<std::mutex> lock(mutex_);
  std::shared_ptr<const Order>& found =
      within_[{static_cast<std::int64_t>(part), limits.source, limits.target}];
  if (found != nullptr) return found;
  Order order;
  std::int64_t shortest = 0;
  for (std::size_t i = 0; i < places_[part].size(); ++i) {
    const Place& place = places_[part][i];
    if (place.source <= limits.source && place.target <= limits.target) {
      order.push_back(static_cast<std::uint32_t>(i));
    }
    shortest = i == 0 ? place.source : std::min(shortest, place.source);
  }
  if (order.empty()) {
    throw UsageError(fmt::format(
        "corpus {}: of {} pairs in its {} part none has at most {} source and {} target tokens; "
        "the "
        "shortest source has {}",
        name_, places_[part].size(), kPartNames[part], limits.source, limits.target, shortest));
  }
  found = std::make_shared<const Order>(std::move(order));
  return found;
}

std::shared_ptr<const TextPairs::Order> TextPairs::Shuffled(
    const std::shared_ptr<const Order>& pairs, const Epoch& epoch) const {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [known, order] : shuffled_) {
      if (known == epoch) return order;
    }
  }
  auto order = std::make_shared<Order>(*pairs);
  RandomStream random(epoch.seed, Purpose::kTrain, static_cast<std::uint64_t>(epoch.epoch));
  for (auto remaining = static_cast<std::int64_t>(order->size()); remaining > 1; --remaining) {
    std::swap((*order)[remaining - 1], (*order)[random.Below(remaining)]);
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  shuffled_.emplace_front(epoch, order);
  if (shuffled_.size() > kEpochs) shuffled_.pop_back();
  return order;
}

std::int64_t TextPairs::Count(Split split, const PairLimits& limits) const {
  return static_cast<std::int64_t>(Within(split, limits)->size());
}

SentencePair TextPairs::Draw(std::uint64_t seed, Split split, std::int64_t index,
                             const PairLimits& limits) const {
  std::shared_ptr<const Order> order = Within(split, limits);
  const auto count = static_cast<std::int64_t>(order->size());
  if (split == Split::kTrain) {
    order = Shuffled(order, {seed, index / count, limits.source, limits.target});
    index %= count;
  } else if (index >= count) {
    throw UsageError(fmt::format(
        "corpus {}: its {} part has {} pairs of at most {} source and {} target tokens; more were "
        "asked for",
        name_, PartName(split), count, limits.source, limits.target));
  }
  const auto part = static_cast<std::size_t>(split);
  const Place& place = places_[part][(*order)[index]];
  const Corpus::Part& tokens = corpus_->Of(split);
  return {tokens.Read(place.begin, place.source),
          tokens.Read(place.begin + place.source + 1, place.target)};
}

}  // namespace tsallis::lab
