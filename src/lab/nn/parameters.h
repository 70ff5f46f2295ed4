// The learned tensors of a model, which autograd sees, in one piece of memory, their gradients in
// another of the same layout, and, where products are made in bfloat16, a rounded copy. Blocks
// declare theirs, then all are made at once.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

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
  at::Tensor value, gradient;  // float32; of a product [rows, columns]
  at::Tensor product;          // what products read: value, or its bfloat16 copy
};

// What a parameter is to an optimiser.
enum class ParameterGroup : std::uint8_t {
  kScalar,     // gains, biases and other numbers, and the matrix behind the last norm
  kHidden,     // a matrix of a layer
  kEmbedding,  // a row for every token
};

// What a model calls the parameters of its blocks.
enum class Naming : std::uint8_t {
  kApart,     // key, value, and the gate of a feed-forward layer have names of their own
  kTogether,  // "key_value", and "up" whose first half is the gate
};

class ParameterList {
 public:
  explicit ParameterList(const c10::Device& device = c10::kCPU, Naming naming = Naming::kApart)
      : device_(device), naming_(naming) {}
  const c10::Device& Device() const { return device_; }
  bool Together() const { return naming_ == Naming::kTogether; }

  // One named tensor; `draw` gives its first values, in order.
  using Draw = std::function<float(RandomStream&)>;
  struct Part {
    std::string name;
    std::vector<std::int64_t> shape;
    Draw draw;
    ParameterGroup group = ParameterGroup::kScalar;
    std::optional<std::uint64_t> stream{};  // of its random numbers; unset: that of its name
  };

  // `leaf` becomes a leaf of this shape whose gradient is that of the list; it must live until
  // Allocate().
  void Add(const std::string& name, const std::vector<std::int64_t>& shape, Draw draw,
           at::Tensor* leaf, ParameterGroup group = ParameterGroup::kScalar);
  // Parts that lie behind each other without gaps, as one leaf: [rows, columns]. The number of each
  // part is a multiple of `columns`.
  void Add(std::vector<Part> parts, std::int64_t columns, at::Tensor* leaf);
  // Those whose names begin with `prefix`, which were added one after the other, lie in this order
  // of what follows it; before them those that it leaves out, as they were added.
  void Order(const std::string& prefix, const std::vector<std::string>& names);

  // Makes the memory and the first values, each part's from a stream of its own: what is added or
  // left out leaves the others as they are, wherever the memory is. `half`: products are made in
  // bfloat16.
  void Allocate(std::uint64_t seed, bool half = false);
  // Renews the rounded copies if the values have changed since the last time.
  void Refresh();

  const at::Tensor& Flat() const { return flat_; }
  const at::Tensor& FlatGradients() const { return flat_gradients_; }
  const std::vector<std::pair<std::string, at::Tensor>>& Named() const { return named_; }
  const std::vector<ParameterGroup>& Groups() const { return kinds_; }  // of each
  const std::vector<at::Tensor>& Gradients() const { return gradients_; }
  std::int64_t Count() const { return count_; }
  // The parameter whose leaf this tensor is, by its place in the memory; none: not of this list.
  std::optional<Parameter> Find(const at::Tensor& leaf) const;

 private:
  struct Leaf {
    std::vector<Part> parts;
    std::vector<std::int64_t> shape;
    at::Tensor* tensor;
    std::int64_t begin = 0;
    Parameter parameter{};
  };
  c10::Device device_;
  Naming naming_;
  std::vector<Leaf> leaves_;
  at::Tensor flat_, flat_gradients_, flat_products_;
  std::vector<std::pair<std::string, at::Tensor>> named_;
  std::vector<ParameterGroup> kinds_;
  std::vector<at::Tensor> gradients_;
  std::int64_t count_ = 0;
  std::int64_t fresh_ = -1;  // the version of flat_ that the rounded copies are of
};

}  // namespace tsallis::lab
