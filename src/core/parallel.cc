#include "core/parallel.h"

#include <omp.h>

#include <algorithm>
#include <exception>

namespace tsallis {

int Threads(const Context& context) {
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

}  // namespace tsallis
