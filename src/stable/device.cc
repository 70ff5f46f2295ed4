#include "stable/device.h"

#include <dlfcn.h>

#include <stdexcept>
#include <string>

#include "tsallis/error.h"

namespace tsallis::stable {
namespace {

// The device's current stream. Only the CUDA half of torch has the function, and it is loaded when
// there is a tensor of such a device.
void* CurrentStream(const Device& device) {
  using Function = AOTITorchError (*)(std::int32_t, void**);
  static const auto function = [] {
    void* const library = dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD);
    void* const symbol =
        library == nullptr ? nullptr : dlsym(library, "aoti_torch_get_current_cuda_stream");
    if (symbol == nullptr) throw std::runtime_error("libtorch_cuda.so: no function for streams");
    return reinterpret_cast<Function>(symbol);
  }();
  void* stream = nullptr;
  Check(function(device.index, &stream), "aoti_torch_get_current_cuda_stream");
  return stream;
}

Context ContextOf(const Device& device) {
  Context context;
  context.device = DeviceKind::kCuda;
  context.device_index = device.index;
  context.stream = CurrentStream(device);
  return context;
}

// Runs `body`. An error that is about the device names the tensor that brought it here.
template <typename Body>
void OnCuda(const Device& device, const char* tensor, const Body& body) {
  try {
    body();
  } catch (const InvalidArgument& error) {
    if (error.argument() != "context.device") throw;
    // "kCpu", and a reason.
    throw InvalidArgument(tensor, "a tensor on the CPU" + error.expected().substr(4),
                          device.Name());
  }
}

// Calls run(context) with so much of torch's memory as its workspace.
void WithWorkspace(const Device& device,
                   const std::function<std::size_t(const Context&)>& workspace_bytes,
                   const std::function<void(const Context&)>& run) {
  OnCuda(device, "q", [&] {
    Context context = ContextOf(device);
    const std::int64_t bytes[1] = {static_cast<std::int64_t>(workspace_bytes(context))};
    // Freed at the end, which is right: what torch allocates next from that memory is used behind
    // it in the stream.
    Tensor workspace;
    if (bytes[0] > 0) {
      workspace = Empty(bytes, dtypes::kUInt8, device);
      context.workspace = workspace.mutable_data();
      context.workspace_bytes = static_cast<std::size_t>(bytes[0]);
    }
    run(context);
  });
}

}  // namespace

Context TorchContext() {
  std::uint32_t threads = 0;
  Check(torch_get_num_threads(&threads), "torch_get_num_threads");
  return Context{static_cast<int>(threads)};
}

const AttentionPasses& CpuPasses() {
  static const AttentionPasses passes = {
      .reader = Reader::kHost,
      .forward = [](const auto&... call) { tsallis::AttentionForward(TorchContext(), call...); },
      .backward = [](const auto&... call) { tsallis::AttentionBackward(TorchContext(), call...); },
      .saved_bytes =
          [](const auto&... call) { return tsallis::AttentionSavedBytes(TorchContext(), call...); },
      .weight_counts =
          [](const auto&... call) { tsallis::AttentionWeightCounts(TorchContext(), call...); },
      .weights = [](const auto&... call) { tsallis::AttentionWeights(TorchContext(), call...); },
      .on_pages = [](const auto&... call) { tsallis::AttentionOnPages(TorchContext(), call...); }};
  return passes;
}

AttentionPasses CudaPasses(const Device& device) {
  const auto pass = [device](const AttentionParams& params, bool backward,
                             const std::function<void(const Context&)>& run) {
    WithWorkspace(
        device,
        [&](const Context& context) { return AttentionWorkspaceBytes(context, params, backward); },
        run);
  };
  return {
      .reader = Reader::kDevice,
      .forward =
          [=](const AttentionParams& params, const AttentionOutputs& outputs) {
            pass(params, false, [&](const Context& c) { AttentionForward(c, params, outputs); });
          },
      .backward =
          [=](const AttentionParams& params, const AttentionGradients& gradients) {
            pass(params, true, [&](const Context& c) { AttentionBackward(c, params, gradients); });
          },
      .saved_bytes =
          [device](const AttentionParams& params, std::size_t budget) {
            std::size_t bytes = 0;
            OnCuda(device, "q",
                   [&] { bytes = AttentionSavedBytes(ContextOf(device), params, budget); });
            return bytes;
          },
      // Their memory is the stream's own: these calls wait for it anyhow.
      .weight_counts =
          [device](const AttentionParams& params, std::int64_t* counts) {
            OnCuda(device, "q", [&] { AttentionWeightCounts(ContextOf(device), params, counts); });
          },
      .weights =
          [device](const AttentionParams& params, const std::int64_t* row_offsets,
                   std::int64_t* columns, float* values) {
            OnCuda(device, "q", [&] {
              AttentionWeights(ContextOf(device), params, row_offsets, columns, values);
            });
          },
      .on_pages =
          [device](const AttentionParams& params, const AttentionPages& pages,
                   const AttentionOutputs& outputs) {
            WithWorkspace(
                device,
                [&](const Context& c) { return AttentionOnPagesWorkspaceBytes(c, params, pages); },
                [&](const Context& c) { AttentionOnPages(c, params, pages, outputs); });
          }};
}

const RowPasses& CpuRowPasses() {
  static const RowPasses passes = {
      .reader = Reader::kHost,
      .forward = [](const auto&... call) { RowsForward(TorchContext(), call...); },
      .backward = [](const auto&... call) { RowsBackward(TorchContext(), call...); },
      .loss = [](const auto&... call) { FenchelYoungLoss(TorchContext(), call...); }};
  return passes;
}

RowPasses CudaRowPasses(const Device& device) {
  const auto on_cuda = [device](const auto& pass) {
    return [device, pass](const auto&... call) {
      OnCuda(device, "scores", [&] { pass(ContextOf(device), call...); });
    };
  };
  return {.reader = Reader::kDevice,
          .forward = on_cuda([](const auto&... call) { RowsForward(call...); }),
          .backward = on_cuda([](const auto&... call) { RowsBackward(call...); }),
          .loss = on_cuda([](const auto&... call) { FenchelYoungLoss(call...); })};
}

DeviceScope::DeviceScope(const Device& device) {
  if (!device.is_cuda()) return;
  Check(aoti_torch_create_device_guard(device.index, &guard_), "aoti_torch_create_device_guard");
}

DeviceScope::~DeviceScope() {
  if (guard_ != nullptr) aoti_torch_delete_device_guard(guard_);
}

}  // namespace tsallis::stable
