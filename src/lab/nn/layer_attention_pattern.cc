// The parts of LayerAttention that concern which keys a query sees.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <type_traits>
#include <vector>

#include "lab/base/errors.h"
#include "lab/nn/layer_attention.h"
#include "lab/nn/patterns.h"
#include "tsallis/error.h"

namespace tsallis::lab {
namespace {

constexpr std::int64_t kBlock = 64;  // of the masks
std::int64_t Blocks(std::int64_t rows) { return (rows + kBlock - 1) / kBlock; }

template <class Array>
Array From(Array array, std::int64_t row) {
  if (array.data == nullptr) return array;
  const auto bytes = row * array.strides[2] * static_cast<std::int64_t>(SizeOf(array.dtype));
  using Byte = std::conditional_t<std::is_const_v<std::remove_pointer_t<decltype(array.data)>>,
                                  const std::byte, std::byte>;
  array.data = static_cast<Byte*>(array.data) + bytes;
  return array;
}

// Numbers of a piece's queries, [heads, q_len], among those of all rows, [heads, rows].
template <class T>
class PieceNumbers {
 public:
  // all: may be null.
  PieceNumbers(T* all, std::int64_t rows, std::int64_t heads, std::int64_t begin,
               std::int64_t count)
      : all_(all), rows_(rows), heads_(heads), begin_(begin), count_(count) {
    if (all != nullptr) own_.resize(static_cast<std::size_t>(heads * count));
  }
  std::remove_const_t<T>* data() { return all_ == nullptr ? nullptr : own_.data(); }
  void Read() {
    Copy([](const T& all, auto& own) { own = all; });
  }
  void Write() {
    Copy([](T& all, const auto& own) { all = own; });
  }

 private:
  template <class Move>
  void Copy(const Move& move) {
    for (std::int64_t h = 0; all_ != nullptr && h < heads_; ++h) {
      for (std::int64_t r = 0; r < count_; ++r) {
        move(all_[h * rows_ + begin_ + r], own_[static_cast<std::size_t>(h * count_ + r)]);
      }
    }
  }
  T* all_;
  std::int64_t rows_, heads_, begin_, count_;
  std::vector<std::remove_const_t<T>> own_;
};

}  // namespace

void LayerAttention::PreparePatterns(std::int64_t length) {
  for (PatternTable& table : patterns_) {
    if (table.mask.k_len >= length) continue;
    // Longer than asked for, for sequences that grow by a token.
    const std::int64_t n = std::max(length, std::min(2 * table.mask.k_len, length + 1024));
    table.mask = MaskOf(lab::PatternOf(table.config), n, n, kBlock, kBlock);
    const auto there = [&](std::vector<std::uint8_t>& bytes, std::int64_t size) {
      if (bytes.empty()) return at::Tensor();
      return at::from_blob(bytes.data(), {size, size}, at::kBool).to(device_);
    };
    table.visible = there(table.mask.elements, n);
    table.blocks = there(table.mask.blocks, Blocks(n));
  }
}

const LayerAttention::PatternTable* LayerAttention::PatternOf(const CallHeads& call) const {
  const int index = pattern_of_[static_cast<std::size_t>(call.first)];
  return index < 0 ? nullptr : &patterns_[static_cast<std::size_t>(index)];
}

std::int64_t LayerAttention::VisibleKeys(const SequenceRows& rows, const Inputs& inputs,
                                         std::int64_t head, std::int64_t row) const {
  if (sight_ != Sight::kBefore) {
    const auto next = std::upper_bound(rows.begin.begin(), rows.begin.end(), row);
    const auto b = static_cast<std::size_t>(next - rows.begin.begin() - 1);
    const SequenceRows& keys = inputs.KeyRows(rows);
    return keys.end[b] - keys.begin[b];
  }
  const std::int64_t position = rows.position[static_cast<std::size_t>(row)];
  const PatternTable* table = PatternOf({head, 1, 1});
  if (table == nullptr || !table->mask.cut) return position + 1;
  const std::uint8_t* seen = table->mask.elements.data() + position * table->mask.k_len;
  return std::count(seen, seen + position + 1, std::uint8_t{1});
}

void LayerAttention::SetPattern(const CallHeads& call, std::int64_t begin,
                                AttentionMask& mask) const {
  const PatternTable* table = PatternOf(call);
  if (table == nullptr) return;
  Use(table->mask, mask);
  if (mask.visible != nullptr) mask.visible += begin * table->mask.k_len;
  // Rows that do not begin at a block of the mask cannot use its blocks. Its elements suffice: they
  // hide later keys too.
  if (begin % kBlock == 0) {
    mask.blocks += begin / kBlock * mask.block_strides[2];
  } else {
    mask.blocks = nullptr;
  }
}

void LayerAttention::SetPattern(const CallHeads& call, std::int64_t length,
                                AttentionOptions& options) const {
  const PatternTable* table = PatternOf(call);
  if (table == nullptr) return;
  const auto beginning = [](const at::Tensor& mask, std::int64_t size) {
    return mask.slice(0, 0, size).slice(1, 0, size);
  };
  if (table->visible.defined()) options.mask = beginning(table->visible, length);
  options.block_mask = beginning(table->blocks, Blocks(length));
  options.block_q = options.block_k = kBlock;
}

at::Tensor LayerAttention::PatternOf(const CallHeads& call, const SequenceRows& rows) const {
  const PatternTable* table = PatternOf(call);
  if (table == nullptr) return {};
  // Patterns are causal, so that the blocks of two keys or more alone show too much.
  return table->visible.index_select(0, rows.positions);
}

void LayerAttention::SetMask(const CallHeads& call, const at::Tensor& visible,
                             std::int64_t sequence, std::int64_t begin, AttentionMask& mask) const {
  if (!visible.defined()) return SetPattern(call, begin, mask);
  static_assert(sizeof(bool) == sizeof(std::uint8_t));
  mask.visible = reinterpret_cast<const std::uint8_t*>(visible.const_data_ptr<bool>()) +
                 sequence * visible.stride(0) + call.first * visible.stride(1) +
                 begin * visible.stride(2);
  const std::int64_t strides[] = {visible.stride(0), call.step * visible.stride(1),
                                  visible.stride(2), 1};
  std::copy(std::begin(strides), std::end(strides), mask.visible_strides);
}

at::Tensor LayerAttention::Checked(const SequenceRows& rows, const Inputs& inputs,
                                   const at::Tensor& visible) const {
  if (!visible.defined()) return {};
  if (!patterns_.empty()) {
    throw UsageError(
        "visible keys: expected a layer whose heads see all tokens so far, got one with a fixed "
        "pattern");
  }
  const std::vector<std::int64_t> shape = {rows.Sequences(), heads_, rows.length,
                                           inputs.KeyRows(rows).length};
  if (visible.scalar_type() != at::kBool || visible.sizes() != at::IntArrayRef(shape) ||
      !visible.is_contiguous()) {
    throw InvalidArgument("visible keys",
                          fmt::format("bool [{}], contiguous", fmt::join(shape, ", ")),
                          fmt::format("{} [{}]{}", at::toString(visible.scalar_type()),
                                      fmt::join(visible.sizes(), ", "),
                                      visible.is_contiguous() ? "" : ", not contiguous"));
  }
  return visible.all().item<bool>() ? at::Tensor() : visible;
}

AttentionParams LayerAttention::Alone(AttentionParams params, const Piece& piece) {
  params.batch = 1;
  params.ranges = {};
  params.q_len = piece.q_len;
  params.k_len = piece.k_len;
  params.q = From(params.q, piece.q_begin);
  params.k = From(params.k, piece.k_begin);
  params.v = From(params.v, piece.k_begin);
  params.terms.length_scale = From(params.terms.length_scale, piece.q_begin);
  return params;
}

std::vector<LayerAttention::Piece> LayerAttention::PiecesOf(const AttentionParams& params) {
  std::vector<Piece> pieces;
  for (std::int64_t b = 0; b < params.batch; ++b) {
    const AttentionRanges& ranges = params.ranges;
    pieces.push_back({ranges.q_begin[b], ranges.q_end[b] - ranges.q_begin[b], ranges.k_begin[b],
                      ranges.k_end[b] - ranges.k_begin[b]});
  }
  return pieces;
}

void LayerAttention::Attend(const CallHeads& call, const AttentionParams& params,
                            const at::Tensor& visible, const AttentionOutputs& outputs) const {
  if (!visible.defined() && PatternOf(call) == nullptr) {
    return AttentionForward(Threads(), params, outputs);
  }
  if (!params.ranges.packed) {
    AttentionParams masked = params;
    SetMask(call, visible, 0, 0, masked.mask);
    return AttentionForward(Threads(), masked, outputs);
  }
  const std::vector<Piece> pieces = PiecesOf(params);
  for (std::size_t b = 0; b < pieces.size(); ++b) {
    const Piece& piece = pieces[b];
    AttentionParams alone = Alone(params, piece);
    const std::int64_t begin = sight_ == Sight::kBefore ? piece.k_len - piece.q_len : 0;
    SetMask(call, visible, static_cast<std::int64_t>(b), begin, alone.mask);
    const auto numbers = [&](auto* all) {
      return PieceNumbers(all, params.q_len, params.heads, piece.q_begin, piece.q_len);
    };
    auto tau = numbers(outputs.tau);
    auto support = numbers(outputs.support_size);
    auto entropy = numbers(outputs.entropy);
    AttentionForward(Threads(), alone,
                     {.out = From(outputs.out, piece.q_begin),
                      .tau = tau.data(),
                      .support_size = support.data(),
                      .entropy = entropy.data()});
    tau.Write();
    support.Write();
    entropy.Write();
  }
}

void LayerAttention::AttendBackward(const CallHeads& call, const AttentionParams& params,
                                    const AttentionGradients& gradients) const {
  if (PatternOf(call) == nullptr) return AttentionBackward(Threads(), params, gradients);
  if (!params.ranges.packed) {
    AttentionParams masked = params;
    SetPattern(call, 0, masked.mask);
    return AttentionBackward(Threads(), masked, gradients);
  }
  // Gradients of heads are sums over the sequences.
  const auto heads = static_cast<std::size_t>(params.heads);
  std::vector<double> d_alpha(heads), d_slopes(heads), d_sink(heads);
  const auto add = [&](double* sum, const std::vector<double>& own) {
    for (std::size_t h = 0; sum != nullptr && h < heads; ++h) sum[h] += own[h];
  };
  for (double* sum : {gradients.d_alpha, gradients.d_slopes, gradients.d_sink}) {
    if (sum != nullptr) std::fill(sum, sum + heads, 0.0);
  }
  for (const Piece& piece : PiecesOf(params)) {
    AttentionParams alone = Alone(params, piece);
    SetPattern(call, piece.k_len - piece.q_len, alone.mask);
    const auto numbers = [&](auto* all) {
      return PieceNumbers(all, params.q_len, params.heads, piece.q_begin, piece.q_len);
    };
    auto tau = numbers(gradients.tau);
    auto d_length_scale = numbers(gradients.d_length_scale);
    tau.Read();
    AttentionGradients own;
    own.d_out = From(gradients.d_out, piece.q_begin);
    own.tau = tau.data();
    own.dq = From(gradients.dq, piece.q_begin);
    own.dk = From(gradients.dk, piece.k_begin);
    own.dv = From(gradients.dv, piece.k_begin);
    own.d_length_scale = d_length_scale.data();
    own.d_alpha = gradients.d_alpha == nullptr ? nullptr : d_alpha.data();
    own.d_slopes = gradients.d_slopes == nullptr ? nullptr : d_slopes.data();
    own.d_sink = gradients.d_sink == nullptr ? nullptr : d_sink.data();
    AttentionBackward(Threads(), alone, own);
    d_length_scale.Write();
    add(gradients.d_alpha, d_alpha);
    add(gradients.d_slopes, d_slopes);
    add(gradients.d_sink, d_sink);
  }
}

}  // namespace tsallis::lab
