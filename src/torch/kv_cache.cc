// The cache of keys and values as a class of torch, whose methods take tensors.
#include <ATen/ATen.h>
#include <torch/custom_class.h>
#include <torch/library.h>

#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <tuple>
#include <vector>

#include "torch/array_view.h"
#include "torch/attention.h"
#include "torch/attention_arguments.h"
#include "torch/attention_settings.h"
#include "tsallis/error.h"
#include "tsallis/kv_cache.h"

namespace tsallis {
namespace {

using at::Tensor;

template <typename Body>
auto Named(Body&& body) {
  try {
    return Translated([&] { return Renamed(body); });
  } catch (const CacheFull& error) {
    // The Python side gives these their types.
    TORCH_CHECK(false, error.what());
  } catch (const std::system_error& error) {
    TORCH_CHECK(false, error.what());
  }
}

void CheckSizes(const char* name, const Tensor& tensor, at::IntArrayRef sizes) {
  if (tensor.sizes() == sizes && tensor.device().is_cpu() && tensor.layout() == at::kStrided) {
    return;
  }
  std::string expected = "[", came = "[";
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    expected += (i > 0 ? ", " : "") + std::to_string(sizes[i]);
  }
  for (std::int64_t i = 0; i < tensor.dim(); ++i) {
    came += (i > 0 ? ", " : "") + std::to_string(tensor.size(i));
  }
  throw InvalidArgument(name, "a dense CPU tensor of shape " + expected + "]",
                        came + "] on " + tensor.device().str());
}

DecodeKeys KeysOf(const std::string& name) {
  if (name == "exact") return DecodeKeys::kExact;
  if (name == "within") return DecodeKeys::kWithin;
  if (name == "top_pages") return DecodeKeys::kTopPages;
  if (name == "gaussian_pages") return DecodeKeys::kGaussianPages;
  if (name == "first_and_last") return DecodeKeys::kFirstAndLast;
  throw InvalidArgument("mode", "a known one", "'" + name + "'");
}

RowMap MapOf(const std::string& name) {
  for (const RowMap map : {RowMap::kEntmax, RowMap::kSoftmax, RowMap::kAdaptiveTemperature}) {
    if (name == Name(map)) return map;
  }
  throw InvalidArgument("map", "'entmax', 'softmax' or 'adaptive_temperature'", "'" + name + "'");
}

class TorchKvCache : public torch::CustomClassHolder {
 public:
  TorchKvCache(std::int64_t layers, std::int64_t kv_heads, std::int64_t head_dim,
               std::int64_t value_dim, at::ScalarType dtype, bool screen, bool ranges, bool moments,
               std::int64_t max_bytes)
      : dtype_(dtype), cache_(Named([&] {
          if (dtype != at::kFloat && dtype != at::kBFloat16 && dtype != at::kHalf) {
            throw InvalidArgument("dtype", "torch.float32, torch.bfloat16 or torch.float16",
                                  std::string("torch.") + c10::toString(dtype));
          }
          return std::make_unique<KvCache>(
              KvCacheShape{layers, kv_heads, head_dim, value_dim,
                           KernelDType(at::empty({0}, dtype))},
              KvCacheOptions{.screen = screen ? KeyScreen::kBytes : KeyScreen::kNone,
                             .ranges = ranges,
                             .moments = moments,
                             .max_bytes = max_bytes});
        })) {}

  std::int64_t Create() { return cache_->Create(); }
  std::int64_t Fork(std::int64_t from, std::int64_t length) {
    return Named([&] { return cache_->Fork(from, length); });
  }
  void Free(std::int64_t sequence) {
    Named([&] { cache_->Free(sequence); });
  }
  void Truncate(std::int64_t sequence, std::int64_t length) {
    Named([&] { cache_->Truncate(sequence, length); });
  }
  std::int64_t Length(std::int64_t sequence, std::int64_t layer) const {
    return Named(
        [&] { return layer < 0 ? cache_->Length(sequence) : cache_->Length(sequence, layer); });
  }

  // k, v: [sequences, kv_heads, tokens, head_dim or value_dim].
  void Append(std::int64_t layer, const std::vector<std::int64_t>& sequences, const Tensor& given_k,
              const Tensor& given_v) {
    Named([&] {
      // Methods of a class have no dispatcher that does this for them.
      const Tensor k = given_k.resolve_neg(), v = given_v.resolve_neg();
      const KvCacheShape& shape = cache_->shape();
      const auto count = static_cast<std::int64_t>(sequences.size());
      const std::int64_t tokens = k.dim() == 4 ? k.size(2) : 0;
      CheckSizes("k", k, {count, shape.kv_heads, tokens, shape.head_dim});
      CheckSizes("v", v, {count, shape.kv_heads, tokens, shape.value_dim});
      CheckDType("k", k);
      CheckDType("v", v);
      for (std::int64_t i = 0; i < count; ++i) {
        try {
          cache_->Append(TorchContext(), sequences[static_cast<std::size_t>(i)], layer,
                         View(k.narrow(0, i, 1)), View(v.narrow(0, i, 1)), tokens);
        } catch (...) {
          // All of them or none.
          for (std::int64_t done = 0; done < i; ++done) {
            const std::int64_t sequence = sequences[static_cast<std::size_t>(done)];
            cache_->TruncateLayer(sequence, layer, cache_->Length(sequence, layer) - tokens);
          }
          throw;
        }
      }
    });
  }

  std::tuple<Tensor, Tensor> Read(std::int64_t sequence, std::int64_t layer) const {
    return Named([&] {
      const KvCacheShape& shape = cache_->shape();
      const std::int64_t length = cache_->Length(sequence, layer);
      Tensor k = at::empty({1, shape.kv_heads, length, shape.head_dim}, dtype_);
      Tensor v = at::empty({1, shape.kv_heads, length, shape.value_dim}, dtype_);
      cache_->Read(sequence, layer, 0, length, Write(k), Write(v));
      return std::tuple(k, v);
    });
  }

  // out, and the statistics of these names.
  std::vector<Tensor> Decode(
      const Tensor& given_q, std::int64_t layer, const std::vector<std::int64_t>& sequences,
      const std::optional<std::vector<std::int64_t>>& begin,
      const std::vector<std::string>& returns, const std::string& keys, double epsilon,
      std::int64_t budget, std::int64_t first, double quantile, const std::string& map,
      double alpha, const std::optional<Tensor>& alpha_heads, std::int64_t left,
      std::optional<double> scale, std::optional<double> softcap,
      std::optional<double> scale_invariant, std::optional<double> scale_invariant_alpha,
      std::optional<double> scale_invariant_beta, const std::optional<Tensor>& slopes,
      const std::optional<Tensor>& length_scale, const std::optional<Tensor>& sink) const {
    return Named([&] {
      const Tensor q = given_q.resolve_neg();
      const KvCacheShape& shape = cache_->shape();
      const auto batch = static_cast<std::int64_t>(sequences.size());
      const std::int64_t heads = q.dim() == 4 ? q.size(1) : 0, q_len = q.dim() == 4 ? q.size(2) : 0;
      CheckSizes("q", q, {batch, heads, q_len, shape.head_dim});
      CheckDType("q", q);
      DecodeParams params;
      params.layer = layer;
      params.sequences = sequences.data();
      params.batch = batch;
      if (begin && begin->size() != sequences.size()) {
        throw InvalidArgument("begin", std::to_string(batch) + " tokens, one for each sequence",
                              std::to_string(begin->size()));
      }
      if (begin) params.begin = begin->data();
      params.heads = heads;
      params.q_len = q_len;
      params.q = View(q);
      params.map = MapOf(map);
      params.mode = {KeysOf(keys), epsilon, budget, first, quantile};
      params.alpha = alpha;
      params.mask.left = left;
      const auto term = [](const char* name, std::optional<double> given, double& member) {
        TermSetting::Check(name, given);
        TermSetting::Take(given, member);
      };
      term("scale", scale, params.terms.scale);
      term("softcap", softcap, params.terms.softcap);
      term("scale_invariant", scale_invariant, params.terms.scale_invariant);
      term("scale_invariant_alpha", scale_invariant_alpha, params.terms.scale_invariant_alpha);
      term("scale_invariant_beta", scale_invariant_beta, params.terms.scale_invariant_beta);
      const auto of_heads = [&](const char* name, const std::optional<Tensor>& tensor) {
        if (!tensor) return Tensor();
        CheckScores(*tensor, name);
        CheckSizes(name, *tensor, {heads});
        return tensor->detach().to(at::kDouble).contiguous();
      };
      const Tensor alphas = of_heads("alpha", alpha_heads), sinks = of_heads("sink", sink);
      const Tensor alibi = of_heads("alibi_slopes", slopes);
      if (alphas.defined()) params.alpha_per_head = alphas.const_data_ptr<double>();
      if (sinks.defined()) params.terms.sink = sinks.const_data_ptr<double>();
      if (alibi.defined()) {
        params.terms.alibi_slopes = {alibi.const_data_ptr(), DType::kFloat64, {0, 1, 0, 1}};
      }
      Tensor scales;
      if (length_scale) {
        CheckScores(*length_scale, "length_scale");
        CheckBroadcasts(*length_scale, "length_scale", "[sequences, heads, q_len]",
                        {batch, heads, q_len});
        if (!length_scale->device().is_cpu() || length_scale->layout() != at::kStrided) {
          throw InvalidArgument("length_scale", "a dense tensor on the CPU",
                                "one on " + length_scale->device().str());
        }
        scales = length_scale->detach().resolve_neg().expand({batch, heads, q_len}).unsqueeze(-1);
        params.terms.length_scale = View(scales);
      }
      Tensor out = at::empty({batch, heads, q_len, shape.value_dim}, dtype_);
      DecodeOutputs outputs{.out = Write(out)};
      std::vector<Tensor> found{out};
      for (const std::string& name : returns) {
        const auto statistic = [&](at::ScalarType type) {
          found.push_back(at::empty({batch, heads, q_len}, type));
          return found.back().mutable_data_ptr();
        };
        const auto real = [&] { return static_cast<double*>(statistic(at::kDouble)); };
        const auto count = [&] { return static_cast<std::int64_t*>(statistic(at::kLong)); };
        if (name == "tau")
          outputs.tau = real();
        else if (name == "support_size")
          outputs.support_size = count();
        else if (name == "entropy")
          outputs.entropy = real();
        else if (name == "maximum")
          outputs.maximum = real();
        else if (name == "certificate")
          outputs.certificate = real();
        else if (name == "lost")
          outputs.lost = real();
        else if (name == "scored")
          outputs.scored = count();
        else if (name == "bytes_read")
          outputs.bytes_read = count();
        else
          throw InvalidArgument("returns", "names of statistics", "'" + name + "'");
      }
      tsallis::Decode(TorchContext(), *cache_, params, outputs);
      return found;
    });
  }

  void Save(std::int64_t sequence, const std::string& path) const {
    Named([&] { cache_->Save(sequence, path); });
  }
  std::int64_t Load(const std::string& path) {
    return Named([&] { return cache_->Load(TorchContext(), path); });
  }

  // sequences, pages, shared pages, bytes of a page, bytes
  std::vector<std::int64_t> Use() const {
    const KvCacheUse use = cache_->Use();
    return {use.sequences, use.pages, use.shared_pages, use.page_bytes, use.bytes};
  }

 private:
  void CheckDType(const char* name, const Tensor& tensor) const {
    if (tensor.scalar_type() == dtype_) return;
    throw InvalidArgument(name, std::string("the dtype of the cache, ") + c10::toString(dtype_),
                          c10::toString(tensor.scalar_type()));
  }

  at::ScalarType dtype_;
  std::unique_ptr<KvCache> cache_;
};

}  // namespace

TORCH_LIBRARY_FRAGMENT(tsallis, m) {
  m.class_<TorchKvCache>("KvCache")
      .def(torch::init<std::int64_t, std::int64_t, std::int64_t, std::int64_t, at::ScalarType, bool,
                       bool, bool, std::int64_t>())
      .def("create", &TorchKvCache::Create)
      .def("fork", &TorchKvCache::Fork)
      .def("free", &TorchKvCache::Free)
      .def("truncate", &TorchKvCache::Truncate)
      .def("length", &TorchKvCache::Length)
      .def("append", &TorchKvCache::Append)
      .def("read", &TorchKvCache::Read)
      .def("decode", &TorchKvCache::Decode)
      .def("save", &TorchKvCache::Save)
      .def("load", &TorchKvCache::Load)
      .def("use", &TorchKvCache::Use);
}

}  // namespace tsallis
