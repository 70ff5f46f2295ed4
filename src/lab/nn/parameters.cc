#include "lab/nn/parameters.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace tsallis::lab {
namespace {

using at::Tensor;

constexpr std::int64_t kAlign = 16;  // floats in 64 bytes

// FNV-1a, cut to the bits that a stream's index has.
std::uint64_t StreamOf(const std::string& name) {
  std::uint64_t hash = 14695981039346656037U;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211U;
  return hash >> 8;
}

std::int64_t NumbersOf(const ParameterList::Part& part) {
  return c10::multiply_integers(part.shape);
}

}  // namespace

float Normal(RandomStream& random, double deviation) {
  const double radius = std::sqrt(-2.0 * std::log(1.0 - random.Uniform()));
  return static_cast<float>(deviation * radius * std::cos(2.0 * M_PI * random.Uniform()));
}

void MarkChanged(const Tensor& tensor) { tensor.unsafeGetTensorImpl()->bump_version(); }

void ParameterList::Add(const std::string& name, const std::vector<std::int64_t>& shape, Draw draw,
                        Tensor* leaf, ParameterGroup group) {
  leaves_.push_back({{{name, shape, std::move(draw), group}}, shape, leaf});
}

void ParameterList::Add(std::vector<Part> parts, std::int64_t columns, Tensor* leaf) {
  leaves_.push_back({std::move(parts), {-1, columns}, leaf});
}

void ParameterList::Order(const std::string& prefix, const std::vector<std::string>& names) {
  const auto inside = [&](const Leaf& leaf) { return leaf.parts[0].name.starts_with(prefix); };
  const auto place = [&](const Leaf& leaf) {
    const std::string name = leaf.parts[0].name.substr(prefix.size());
    const auto found = std::find(names.begin(), names.end(), name);
    return found == names.end() ? -1 : found - names.begin();
  };
  const auto first = std::find_if(leaves_.begin(), leaves_.end(), inside);
  std::stable_sort(first, std::find_if_not(first, leaves_.end(), inside),
                   [&](const Leaf& a, const Leaf& b) { return place(a) < place(b); });
}

void ParameterList::Allocate(std::uint64_t seed, bool half) {
  std::int64_t total = 0;
  for (Leaf& leaf : leaves_) {
    leaf.begin = total;
    for (const Part& part : leaf.parts) total += NumbersOf(part);
    total = (total + kAlign - 1) / kAlign * kAlign;
  }
  flat_ = at::zeros({total});
  for (const Leaf& leaf : leaves_) {
    float* to = flat_.mutable_data_ptr<float>() + leaf.begin;
    for (const Part& part : leaf.parts) {
      RandomStream random(seed, Purpose::kInit, part.stream.value_or(StreamOf(part.name)));
      for (std::int64_t k = NumbersOf(part); k > 0; --k) *to++ = part.draw(random);
    }
  }
  flat_ = flat_.to(device_);
  flat_gradients_ = at::zeros_like(flat_);
  flat_products_ = half ? at::zeros_like(flat_, at::kBFloat16) : flat_;
  for (Leaf& leaf : leaves_) {
    std::int64_t end = leaf.begin;
    for (const Part& part : leaf.parts) {
      const std::int64_t begin = end;
      end += NumbersOf(part);
      named_.emplace_back(part.name, flat_.slice(0, begin, end).view(part.shape));
      kinds_.push_back(part.group);
      gradients_.push_back(flat_gradients_.slice(0, begin, end).view(part.shape));
    }
    count_ += end - leaf.begin;
    const auto view = [&](const Tensor& flat) {
      return flat.slice(0, leaf.begin, end).view(leaf.shape);
    };
    leaf.parameter = {view(flat_), view(flat_gradients_), view(flat_products_)};
    *leaf.tensor = leaf.parameter.value.detach().requires_grad_(true);
    leaf.tensor->mutable_grad() = leaf.parameter.gradient;
  }
}

void ParameterList::Refresh() {
  if (flat_products_.is_same(flat_) || fresh_ == flat_._version()) return;
  flat_products_.copy_(flat_);
  fresh_ = flat_._version();
}

std::optional<Parameter> ParameterList::Find(const Tensor& leaf) const {
  if (!leaf.defined() || !flat_.defined() || !leaf.is_alias_of(flat_)) return std::nullopt;
  const auto found = std::partition_point(leaves_.begin(), leaves_.end(), [&](const Leaf& one) {
    return one.begin < leaf.storage_offset();
  });
  if (found == leaves_.end() || found->begin != leaf.storage_offset() ||
      found->parameter.value.numel() != leaf.numel()) {
    return std::nullopt;
  }
  return found->parameter;
}

}  // namespace tsallis::lab
