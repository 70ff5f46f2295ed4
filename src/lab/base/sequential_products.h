// Matrix products that have the same bits for any number of threads.
#pragma once

#include <ATen/Parallel.h>

namespace tsallis::lab {

// While it lives torch's products run on the thread that calls them: torch splits a product by the
// number of threads there are. Work is handed out above them, by block or by matrix.
class SequentialProducts {
 public:
  SequentialProducts() : threads_(at::get_num_threads()) {
    if (threads_ > 1) at::set_num_threads(1);
  }
  ~SequentialProducts() {
    if (threads_ > 1) at::set_num_threads(threads_);
  }
  SequentialProducts(const SequentialProducts&) = delete;
  SequentialProducts& operator=(const SequentialProducts&) = delete;

  // How many there are to hand out.
  int threads() const { return threads_; }

 private:
  int threads_;
};

}  // namespace tsallis::lab
