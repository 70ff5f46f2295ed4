#include "lab/base/denormals.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>

namespace tsallis::lab {

void FlushDenormals() {
  at::globalContext().setFlushDenormal(true);
#pragma omp parallel num_threads(at::get_num_threads())
  at::globalContext().setFlushDenormal(true);
}

}  // namespace tsallis::lab
