#include "core/parallel.h"

#include <omp.h>

#include <algorithm>
#include <atomic>
#include <exception>

#include "tsallis/error.h"

namespace tsallis {

int Threads(const Context& context) {
  // Everything that has no code for other devices comes through here.
  if (context.device != DeviceKind::kCpu) {
    throw InvalidArgument("context.device", "kCpu, for what has no CUDA kernels", "kCuda");
  }
  return context.threads > 0 ? context.threads : std::max(1, omp_get_max_threads());
}

void ParallelFor(const Context& context, std::int64_t count, std::int64_t grain,
                 const std::function<void(std::int64_t begin, std::int64_t end)>& body) {
  if (count <= 0) return;
  grain = std::max<std::int64_t>(grain, 1);
  const std::int64_t pieces = std::min<std::int64_t>(Threads(context), (count + grain - 1) / grain);
  if (pieces <= 1 || omp_in_parallel()) {
    body(0, count);
    return;
  }
  std::exception_ptr error;
#pragma omp parallel for num_threads(static_cast <int>(pieces)) schedule(static, 1)
  for (std::int64_t piece = 0; piece < pieces; ++piece) {
    try {
      body(count * piece / pieces, count * (piece + 1) / pieces);
    } catch (...) {
#pragma omp critical(tsallis_parallel_error)
      if (!error) error = std::current_exception();
    }
  }
  if (error) std::rethrow_exception(error);
}

int Workers(const Context& context, std::int64_t count) {
  if (omp_in_parallel()) return 1;
  return static_cast<int>(std::clamp<std::int64_t>(count, 1, Threads(context)));
}

void ParallelTasks(const Context& context, std::int64_t count,
                   const std::function<void(std::int64_t task, int worker)>& body) {
  const int workers = Workers(context, count);
  if (workers == 1) {
    for (std::int64_t task = 0; task < count; ++task) body(task, 0);
    return;
  }
  std::atomic<std::int64_t> next = 0;
  std::exception_ptr error;
#pragma omp parallel for num_threads(workers) schedule(static, 1)
  for (int worker = 0; worker < workers; ++worker) {
    try {
      for (std::int64_t task = next++; task < count; task = next++) body(task, worker);
    } catch (...) {
      next = count;
#pragma omp critical(tsallis_parallel_error)
      if (!error) error = std::current_exception();
    }
  }
  if (error) std::rethrow_exception(error);
}

}  // namespace tsallis
