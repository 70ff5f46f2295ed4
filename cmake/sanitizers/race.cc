// Two threads add to one number: ThreadSanitizer has to say so, or its silence about the kernels
// means nothing. The wrong access is on purpose.
#include <cstdint>
#include <cstdio>

#include "core/parallel.h"

int main() {
  std::int64_t sum = 0;
  tsallis::ParallelFor({.threads = 2}, 2, 1, [&](std::int64_t, std::int64_t) {
    for (int i = 0; i < 100000; ++i) ++sum;
  });
  std::printf("%lld\n", static_cast<long long>(sum));
  return 0;
}
