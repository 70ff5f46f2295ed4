// Processes that train together: each works on its share of every batch, or of the tokens of its
// sequences, and gradients are summed over all of them by c10d (Gloo: the lab computes on
// processors).
//
// All processes have to call a collective function in the same order. It throws LostProcess when
// another one does not answer.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "lab/train/launch.h"

namespace tsallis::lab {

// Another process died or is out of reach.
class LostProcess : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Another process failed and said why.
class FailedProcess : public LostProcess {
 public:
  using LostProcess::LostProcess;
};

// A handle: copies are of the same group.
class Processes {
 public:
  // This process alone: nothing waits for anything, sums are what they were.
  Processes() = default;

  // Waits for the others of `launch`. std::runtime_error naming those that do not come within
  // launch.timeout, Interrupted when `stop` becomes true. With more than one, SIGPIPE is ignored
  // from here on: a write to one that is gone must fail, so that it can be named, instead of ending
  // this process too.
  static Processes Connect(const Launch& launch, const std::atomic<bool>& stop);

  int Rank() const;
  int Size() const;
  // Among the processes of this machine.
  int LocalRank() const;
  // The one that reads and writes files and speaks to the user.
  bool First() const { return Rank() == 0; }

  // Which of `count` things are this process's: [first, first + second). Shares differ by one at
  // most.
  std::pair<std::int64_t, std::int64_t> Share(std::int64_t count) const;

  // A sum that goes on in the background.
  class Pending {
   public:
    virtual ~Pending() = default;
    // Afterwards the sum is there. Throws LostProcess.
    virtual void Wait() {}
  };

  // Collective. Replaces every element by its sum over all processes, to the same bits in each, in
  // an order that depends on the number of processes and the tensor's size alone. tensor:
  // contiguous float32, float64 or int64 in memory. One on a device is summed on the host.
  void Sum(const at::Tensor& tensor) const;
  std::unique_ptr<Pending> StartSum(const at::Tensor& tensor) const;

  // Collective. Replaces the tensor by the first process's.
  void Broadcast(const at::Tensor& tensor) const;

  // Collective. SequencePart::exchange. Numbers on a device are sent by the host.
  at::Tensor Exchange(const at::Tensor& sent, const std::vector<std::int64_t>& counts,
                      const std::vector<std::int64_t>& received) const;

  // Collective. Whether the tensor has the same bits in all processes, to every one of them.
  // tensor: contiguous float32.
  bool Agree(const at::Tensor& tensor) const;

  // Runs `body`. Its exceptions, other than LostProcess and Interrupted (which all throw alike), is
  // told to the others: what they throw then is a FailedProcess.
  void Together(const std::function<void()>& body) const;

 private:
  struct Group;
  class Work;
  std::shared_ptr<Group> group_;  // null: alone
};

}  // namespace tsallis::lab
