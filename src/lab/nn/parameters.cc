#include "lab/nn/parameters.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace tsallis::lab {
namespace {

constexpr std::int64_t kAlign = 16;  // floats in 64 bytes

// FNV-1a, cut to the bits that a stream's index has.
std::uint64_t StreamOf(const std::string& name) {
  std::uint64_t hash = 14695981039346656037U;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211U;
  return hash >> 8;
}

}  // namespace

float Normal(RandomStream& random, double deviation) {
  const double radius = std::sqrt(-2.0 * std::log(1.0 - random.Uniform()));
  return static_cast<float>(deviation * radius * std::cos(2.0 * M_PI * random.Uniform()));
}

void MarkChanged(const at::Tensor& tensor) { tensor.unsafeGetTensorImpl()->bump_version(); }

void ParameterList::Add(std::vector<Part> parts, std::int64_t columns, Parameter* whole) {
  groups_.push_back({std::move(parts), columns, whole});
}

void ParameterList::Allocate(std::uint64_t seed, bool half, const c10::Device& device) {
  std::int64_t total = 0;
  for (const Group& group : groups_) {
    for (const Part& part : group.parts) total += c10::multiply_integers(part.shape);
    total = (total + kAlign - 1) / kAlign * kAlign;
  }
  const at::Tensor drawn = at::zeros({total});
  const auto for_each = [&](const auto& part_at, const auto& group_at) {
    std::int64_t offset = 0;
    for (const Group& group : groups_) {
      const std::int64_t begin = offset;
      for (const Part& part : group.parts) {
        part_at(part, offset);
        offset += c10::multiply_integers(part.shape);
      }
      group_at(group, begin, offset);
      offset = (offset + kAlign - 1) / kAlign * kAlign;
    }
  };
  for_each(
      [&](const Part& part, std::int64_t offset) {
        RandomStream random(seed, Purpose::kInit, StreamOf(part.name));
        float* values = drawn.mutable_data_ptr<float>() + offset;
        const std::int64_t count = c10::multiply_integers(part.shape);
        for (std::int64_t k = 0; k < count; ++k) values[k] = part.draw(random);
      },
      [](const Group&, std::int64_t, std::int64_t) {});
  flat_ = drawn.to(device);
  flat_gradients_ = at::zeros_like(flat_);
  flat_products_ = half ? at::zeros_like(flat_, at::kBFloat16) : flat_;
  for_each(
      [&](const Part& part, std::int64_t offset) {
        const std::int64_t count = c10::multiply_integers(part.shape);
        named_.emplace_back(part.name, flat_.narrow(0, offset, count).view(part.shape));
        kinds_.push_back(part.group);
        gradients_.push_back(flat_gradients_.narrow(0, offset, count).view(part.shape));
        count_ += count;
      },
      [&](const Group& group, std::int64_t begin, std::int64_t end) {
        const auto view = [&](const at::Tensor& flat) {
          return flat.narrow(0, begin, end - begin).view({-1, group.columns});
        };
        *group.whole = {view(flat_), view(flat_gradients_), view(flat_products_)};
      });
}

void ParameterList::Refresh() {
  if (flat_products_.is_same(flat_) || fresh_ == flat_._version()) return;
  flat_products_.copy_(flat_);
  fresh_ = flat_._version();
}

std::optional<Parameter> ParameterList::Find(const at::Tensor& value) const {
  if (!value.defined() || !flat_.defined() || !value.is_alias_of(flat_)) return std::nullopt;
  const auto found = std::partition_point(groups_.begin(), groups_.end(), [&](const Group& group) {
    return Begin(*group.whole) < value.storage_offset();
  });
  if (found == groups_.end() || Begin(*found->whole) != value.storage_offset() ||
      found->whole->value.numel() != value.numel()) {
    return std::nullopt;
  }
  return *found->whole;
}

std::int64_t ParameterList::Begin(const Parameter& whole) const {
  return whole.value.storage_offset();
}

}  // namespace tsallis::lab
