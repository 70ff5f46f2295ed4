#include "lab/train/gradient_sum.h"

#include <ATen/ATen.h>

namespace tsallis::lab {

GradientSum::GradientSum(const Processes& processes, const at::Tensor& gradients)
    : processes_(processes),
      gradients_(gradients),
      begin_(gradients.numel()),
      end_(gradients.numel()) {}

void GradientSum::Ready(std::int64_t begin, std::int64_t end) {
  TORCH_INTERNAL_ASSERT(end == begin_ && begin <= end, "gradients ready out of order");
  begin_ = begin;
  if (end_ - begin_ >= kBucket) Send();
}

void GradientSum::Send() {
  sent_.push_back(processes_.StartSum(gradients_.narrow(0, begin_, end_ - begin_)));
  end_ = begin_;
}

void GradientSum::Finish() {
  begin_ = 0;
  if (end_ > 0) Send();
  for (const auto& sum : sent_) sum->Wait();
  sent_.clear();
  begin_ = end_ = gradients_.numel();
}

}  // namespace tsallis::lab
