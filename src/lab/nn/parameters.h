// The learned tensors of a model in one piece of memory, their gradients in another of the same
// layout, and, where products are made in bfloat16, a rounded copy.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lab/base/random.h"

namespace tsallis::lab {

// Normal with the given deviation; Box and Muller 1958.
float Normal(RandomStream& random, double deviation);

// To be called after writing to parameters through a pointer; torch's own operations need not.
void MarkChanged(const at::Tensor& tensor);

struct Parameter {
  at::Tensor value, gradient;  // [rows, columns] float32
  at::Tensor product;          // what products read: value, or its bfloat16 copy
};

// What a parameter is to an optimiser.
enum class ParameterGroup : std::uint8_t {
  kScalar,     // gains, biases and other numbers, and the matrix behind the last norm
  kHidden,     // a matrix of a layer
  kEmbedding,  // a row for every token
};

class ParameterList {
 public:
  // One named tensor; `draw` gives its first values, in order.
  struct Part {
    std::string name;
    std::vector<std::int64_t> shape;
    std::function<float(RandomStream&)> draw;
    ParameterGroup group = ParameterGroup::kScalar;
  };

  // Parts that lie behind each other without gaps, seen together as `whole`: [rows, columns]. The
  // number of each part is a multiple of `columns`. `whole` must live as long.
  void Add(std::vector<Part> parts, std::int64_t columns, Parameter* whole);

  // Makes the memory and the first values, each part's from a stream of its name: what is added or
  // left out leaves the others as they are, wherever the memory is. `half`: products are made in
  // bfloat16.
  void Allocate(std::uint64_t seed, bool half, const c10::Device& device = c10::kCPU);
  // Renews the rounded copies if the values have changed since the last time.
  void Refresh();

  const at::Tensor& Flat() const { return flat_; }
  const at::Tensor& FlatGradients() const { return flat_gradients_; }
  const std::vector<std::pair<std::string, at::Tensor>>& Named() const { return named_; }
  const std::vector<ParameterGroup>& Groups() const { return kinds_; }  // of each
  const std::vector<at::Tensor>& Gradients() const { return gradients_; }
  std::int64_t Count() const { return count_; }
  // The `whole` whose value this tensor is, by its place in the memory; none: not of this list.
  std::optional<Parameter> Find(const at::Tensor& value) const;
  // The begin, in the flat memory, of the group that holds `whole`.
  std::int64_t Begin(const Parameter& whole) const;

 private:
  struct Group {
    std::vector<Part> parts;
    std::int64_t columns;
    Parameter* whole;
  };
  std::vector<Group> groups_;
  at::Tensor flat_, flat_gradients_, flat_products_;
  std::vector<std::pair<std::string, at::Tensor>> named_;
  std::vector<ParameterGroup> kinds_;
  std::vector<at::Tensor> gradients_;
  std::int64_t count_ = 0;
  std::int64_t fresh_ = -1;  // the version of flat_ that the rounded copies are of
};

}  // namespace tsallis::lab
