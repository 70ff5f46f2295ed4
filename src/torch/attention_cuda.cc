// Attention on CUDA tensors. Built against any torch, also one for CPUs: memory comes from the
// tensors' own allocator, the stream through c10's interface of devices. The kernels are the
// library's, or it says that it has none.
#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <functional>
#include <string>

#include "torch/attention.h"
#include "torch/attention_arguments.h"
#include "tsallis/error.h"

namespace tsallis {
namespace {

using at::Tensor;

// The current stream of a device, as CUDA's runtime knows it.
void* CurrentStream(const at::Device& device) {
#if defined(TSALLIS_STREAM_HANDLES)
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device).native_handle();
#else
  // CMake compiles no CUDA kernels for a torch whose streams have no handles, so nothing runs.
  static_cast<void>(device);
  return nullptr;
#endif
}

// Runs `body`. An error that is about the device names the tensor that brought it here.
template <typename Body>
void OnDevice(const at::Device& device, const Body& body) {
  try {
    body();
  } catch (const InvalidArgument& error) {
    if (error.argument() != "context.device") throw;
    const std::string what = error.what(), expected = "expected kCpu", got = ", got kCuda";
    const std::size_t from = what.find(expected), upto = what.rfind(got);
    TORCH_INTERNAL_ASSERT(from != std::string::npos && upto != std::string::npos, what);
    const std::size_t reason = from + expected.size();
    throw InvalidArgument("q", "a tensor on the CPU" + what.substr(reason, upto - reason),
                          device.str());
  }
}

Context ContextOf(const at::Device& device) {
  Context context;
  context.device = DeviceKind::kCuda;
  context.device_index = device.index();
  context.stream = CurrentStream(device);
  return context;
}

AttentionPasses CudaPasses(const at::Device& device) {
  const auto with_context = [device](const AttentionParams& params, bool backward,
                                     const std::function<void(const Context&)>& run) {
    RunOnCuda(
        device,
        [&](const Context& context) { return AttentionWorkspaceBytes(context, params, backward); },
        run);
  };
  return {.reader = Reader::kDevice,
          .saves = false,
          .forward =
              [=](const AttentionParams& params, const AttentionOutputs& outputs) {
                with_context(params, false, [&](const Context& context) {
                  AttentionForward(context, params, outputs);
                });
              },
          .backward =
              [=](const AttentionParams& params, const AttentionGradients& gradients) {
                with_context(params, true, [&](const Context& context) {
                  AttentionBackward(context, params, gradients);
                });
              },
          // Their memory is the stream's own: these calls wait for it anyhow.
          .weight_counts =
              [=](const AttentionParams& params, std::int64_t* counts) {
                OnDevice(device, [&] { AttentionWeightCounts(ContextOf(device), params, counts); });
              },
          .weights =
              [=](const AttentionParams& params, const std::int64_t* row_offsets,
                  std::int64_t* columns, float* values) {
                OnDevice(device, [&] {
                  AttentionWeights(ContextOf(device), params, row_offsets, columns, values);
                });
              }};
}

}  // namespace

void RunOnCuda(const at::Device& device,
               const std::function<std::size_t(const Context&)>& workspace_bytes,
               const std::function<void(const Context&)>& run) {
  OnDevice(device, [&] {
    Context context = ContextOf(device);
    const auto bytes = static_cast<std::int64_t>(workspace_bytes(context));
    // Freed at the end, which is right: what torch allocates next from that memory is used behind
    // it in the stream.
    Tensor workspace;
    if (bytes > 0) {
      workspace = at::empty({bytes}, at::TensorOptions().dtype(at::kByte).device(device));
      context.workspace = workspace.mutable_data_ptr();
      context.workspace_bytes = static_cast<std::size_t>(bytes);
    }
    run(context);
  });
}

AttentionResults AttentionForwardCuda(const Tensor& q, const Tensor& k, const Tensor& v,
                                      const AttentionOptions& options,
                                      const AttentionRequest& request) {
  const c10::DeviceGuard guard(q.device());
  return AttentionForwardBy(CudaPasses(q.device()), q, k, v, options, request);
}

Tensors<3> AttentionWeightsCuda(const Tensor& q, const Tensor& k, const AttentionOptions& options) {
  const c10::DeviceGuard guard(q.device());
  return AttentionWeightsBy(CudaPasses(q.device()), q, k, options);
}

std::array<Tensor, kInputs> AttentionBackwardCuda(const Tensor& d_out, const Tensor& q,
                                                  const Tensor& k, const Tensor& v,
                                                  const Tensor& tau, const Tensor& saved,
                                                  const AttentionOptions& options,
                                                  const AttentionWanted& wanted) {
  const c10::DeviceGuard guard(q.device());
  return AttentionBackwardBy(CudaPasses(q.device()), d_out, q, k, v, tau, saved, options, wanted);
}

}  // namespace tsallis
