// The arguments of attention beside q, k and v: as the operators take them, checked, and as the
// kernel library takes them.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "stable/settings.h"
#include "stable/tensor.h"
#include "tsallis/attention.h"
#include "tsallis/error.h"

namespace tsallis::stable {

// Says who may read the tensors. The host checks the contents of ranges; of a device's tensors it
// reads nothing but alphas, since reading waits for the device.
enum class Reader : std::uint8_t { kHost, kDevice };

// The names of maps, as errors list them.
std::string NamesOf(const std::vector<RowMap>& maps);

// Throws InvalidArgument unless the kernels can read the tensor's dtype and layout.
void CheckFloating(const Tensor& tensor, const char* argument);
// Throws InvalidArgument unless the tensor is dense and on q's device.
void CheckDevice(const Tensor& tensor, const char* argument, const Tensor& q);
// Throws InvalidArgument unless the tensor has q's dtype.
void CheckDType(const Tensor& tensor, const char* argument, const Tensor& q);
// Throws InvalidArgument unless the tensor, on q's device, has int32 or int64.
void CheckIntegers(const Tensor& tensor, const char* argument, const Tensor& q);
// Throws InvalidArgument unless the query heads share the key heads evenly.
void CheckGroups(std::int64_t heads, std::int64_t kv_heads);

// Blocks of a length; the last may be cut short.
constexpr std::int64_t Blocks(std::int64_t length, std::int64_t block) {
  return length / block + (length % block != 0 ? 1 : 0);
}

// The operators' argument that a member of the kernel library's structs comes from, for errors.
std::string ArgumentOf(const std::string& member);

// Runs `body`; errors name arguments instead of members.
template <typename Body>
auto Renamed(Body&& body) {
  try {
    return body();
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(ArgumentOf(error.argument()), error.expected(), error.actual());
  }
}

// Tensors are optional: empty where they were not given. (g): attention has a gradient in it.
class AttentionArguments {
 public:
  using Sizes4 = std::array<std::int64_t, 4>;

  AttentionArguments() = default;
  AttentionArguments(const AttentionArguments&) = delete;
  AttentionArguments& operator=(const AttentionArguments&) = delete;

  // Of any of the four dtypes. For packed sequences `batch` is 1 in every shape.
  Tensor alpha_heads;                 // (g) broadcasts to [heads]
  Tensor length_scale;                // (g) broadcasts to [batch, heads, q_len]
  Tensor alibi_slopes;                // (g) [heads] or [batch, heads]
  Tensor bias;                        // (g) broadcasts to [batch, heads, q_len, k_len]
  Tensor sink;                        // (g) broadcasts to [heads]
  Tensor mask;                        // bool, true = visible; broadcasts as the bias
  Tensor block_mask;                  // bool, broadcasts to [batch, heads, q_blocks, k_blocks]
  Tensor lengths, query_lengths;      // int32 or int64 [batch]
  Tensor cu_seqlens_q, cu_seqlens_k;  // int32 or int64 [sequences + 1]
  Padding padding = Padding::kRight;
  std::int64_t saved_budget = std::int64_t{1} << 28;  // bytes
  // The settings that are numbers; Bind() adds the rest.
  AttentionParams params;
  Mistake mistake;

  // Checks everything that shapes, dtypes and settings tell. v may be empty: the weights do not
  // need it. Throws InvalidArgument.
  void Check(const Tensor& q, const Tensor& k, const Tensor& v) const;

  // Fills in sizes and pointers, which point into q, k, v and these arguments. Without v: values of
  // one element, all 0 (for the host alone).
  void Bind(const Tensor& q, const Tensor& k, const Tensor& v, Reader reader);

  std::int64_t array_batch() const { return array_batch_; }
  // Packed rows that belong to no sequence, which the kernels do not write; on a device there may
  // be some in every packed batch.
  bool q_has_gaps() const { return q_gaps_; }
  bool k_has_gaps() const { return k_gaps_; }
  Sizes4 Scores() const { return {array_batch_, params.heads, params.q_len, params.k_len}; }
  std::array<std::int64_t, 3> Rows() const { return {array_batch_, params.heads, params.q_len}; }

 private:
  // Begins and ends of the sequences along an axis, [batch] each: numbers of the host, or tensors
  // of a device.
  struct Axis {
    std::vector<std::int64_t> begin, end;
    Tensor device_begin, device_end;
  };

  void CheckMap(const Tensor& q) const;
  void CheckRanges(const Tensor& q, const Tensor& k) const;
  void SetMasks();
  void SetTerms();
  void SetPadding(const Tensor& counts, const char* argument, std::int64_t length,
                  Axis& axis) const;
  bool SetPacked(const Tensor& offsets, const char* argument, std::int64_t length,
                 Axis& axis) const;

  Reader reader_ = Reader::kHost;
  std::int64_t array_batch_ = 0;
  bool q_gaps_ = false, k_gaps_ = false;
  std::vector<double> alpha_, host_sink_;  // [heads]
  Tensor device_sink_;                     // likewise, float64
  Axis q_axis_, k_axis_;
  double no_value_ = 0.0;
};

}  // namespace tsallis::stable
