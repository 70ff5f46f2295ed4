#include "lab/train/processes.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <csignal>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <vector>

#include "lab/base/errors.h"
#include "lab/nn/parameters.h"
#include "lab/nn/sequence_part.h"

namespace tsallis::lab {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kPoll{20};
// Within this time every process that still runs has noticed that another one has ended.
constexpr milliseconds kRollCall{2000};

// The processes whose key is not in the store. A key that is in it stays in it.
std::vector<int> Missing(c10d::Store& store, const std::string& prefix, int size) {
  std::vector<int> missing;
  for (int rank = 0; rank < size; ++rank) {
    if (!store.check({prefix + std::to_string(rank)})) missing.push_back(rank);
  }
  return missing;
}

std::string Named(const std::vector<int>& ranks) {
  return fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", "));
}

// Called before connecting, since connecting can neither be interrupted nor name the missing
// processes. A second barrier ("there/") follows it: a process that fails earlier would leave its
// peers hanging without a reason.
void WaitForAll(c10d::Store& store, const std::string& prefix, const Launch& launch,
                const std::atomic<bool>& stop) {
  store.set(prefix + std::to_string(launch.rank), "");
  const Clock::time_point end = Clock::now() + launch.timeout;
  for (;;) {
    const std::vector<int> missing = Missing(store, prefix, launch.size);
    if (missing.empty()) return;
    if (stop) throw Interrupted("stopped while waiting for " + Named(missing));
    if (Clock::now() > end) {
      const auto waited = std::chrono::duration_cast<std::chrono::seconds>(launch.timeout);
      throw std::runtime_error(fmt::format("{} of {} did not come within {} s", Named(missing),
                                           launch.size, waited.count()));
    }
    std::this_thread::sleep_for(kPoll);
  }
}

// "[.../pair.cc:537] Read error [127.0.0.1]:5: reset. This is typically ..." without its ends.
std::string Reason(const std::exception& error) {
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  std::string text = torch_error != nullptr ? torch_error->what_without_backtrace() : error.what();
  if (const auto end = text.find("] "); text.starts_with("[") && end != std::string::npos) {
    text.erase(0, end + 2);
  }
  text = text.substr(0, std::min(text.find(". "), text.find('\n')));
  if (text.ends_with('.')) text.pop_back();
  // gloo says so of an operation that another one's timeout has closed.
  if (text == "Application timeout caused pair closure") {
    return "Timed out waiting for another process";
  }
  return text;
}

}  // namespace

struct Processes::Group {
  int rank, size, local_rank;
  c10::intrusive_ptr<c10d::Store> store;
  c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo;

  // Throws the fate of the others: their own words, or else the names of those that do not answer a
  // roll call.
  [[noreturn]] void ThrowLost(const std::string& reason) {
    std::string what = "another process was lost";
    try {
      store->set("noticed/" + std::to_string(rank), "");
      const Clock::time_point end = Clock::now() + kRollCall;
      std::vector<int> missing;
      do {
        if (store->check({"failure"})) throw FailedProcess(store->get_to_str("failure"));
        missing = Missing(*store, "noticed/", size);
        if (missing.size() <= 1) break;
        std::this_thread::sleep_for(kPoll);
      } while (Clock::now() < end);
      if (!missing.empty()) {
        what = fmt::format("{} {} lost", Named(missing), missing.size() == 1 ? "was" : "were");
      }
    } catch (const c10::Error&) {
      // Whoever kept the store is gone too; there is no more to be said.
    }
    throw LostProcess(fmt::format("{} ({})", what, reason));
  }
};

// An operation of gloo on a tensor. gloo reaches the memory of the host alone, so a copy stands for
// a tensor on a device.
class Processes::Work : public Processes::Pending {
 public:
  using Start = std::function<c10::intrusive_ptr<c10d::Work>(std::vector<at::Tensor>&)>;
  Work(std::shared_ptr<Group> group, const at::Tensor& tensor, const Start& start)
      : group_(std::move(group)), tensor_(tensor), host_{tensor.cpu()}, work_(start(host_)) {}

  void Wait() override {
    std::string reason;
    try {
      work_->wait();
      if (!tensor_.is_cpu()) tensor_.copy_(host_[0]);
      return;
    } catch (const std::exception& error) {
      reason = Reason(error);
    }
    group_->ThrowLost(reason);
  }

 private:
  std::shared_ptr<Group> group_;
  at::Tensor tensor_;
  std::vector<at::Tensor> host_;
  c10::intrusive_ptr<c10d::Work> work_;
};

Processes Processes::Connect(const Launch& launch, const std::atomic<bool>& stop) {
  Processes processes;
  if (launch.size == 1) return processes;
  std::signal(SIGPIPE, SIG_IGN);
  try {
    c10d::TCPStoreOptions options;
    options.port = launch.port;
    options.isServer = !launch.store_is_there && launch.rank == 0;
    options.waitWorkers = false;
    options.timeout = launch.timeout;
    const auto store = c10::make_intrusive<c10d::PrefixStore>(
        "tsallis/" + launch.attempt, c10::make_intrusive<c10d::TCPStore>(launch.host, options));
    WaitForAll(*store, "here/", launch, stop);
    using Gloo = c10d::ProcessGroupGloo;
    const auto gloo_options = Gloo::Options::create(launch.timeout);
    gloo_options->devices.push_back(launch.interface.empty()
                                        ? Gloo::createDefaultDevice()
                                        : Gloo::createDeviceForInterface(launch.interface));
    processes.group_ = std::make_shared<Group>(
        Group{launch.rank, launch.size, launch.local_rank, store,
              c10::make_intrusive<Gloo>(store, launch.rank, launch.size, gloo_options)});
    WaitForAll(*store, "there/", launch, stop);
  } catch (const Interrupted&) {
    throw;
  } catch (const std::exception& error) {
    throw std::runtime_error(fmt::format("the processes cannot be connected over {}:{}: {}",
                                         launch.host, launch.port, Reason(error)));
  }
  return processes;
}

int Processes::Rank() const { return group_ ? group_->rank : 0; }
int Processes::Size() const { return group_ ? group_->size : 1; }
int Processes::LocalRank() const { return group_ ? group_->local_rank : 0; }

std::pair<std::int64_t, std::int64_t> Processes::Share(std::int64_t count) const {
  return ShareOf(count, Rank(), Size());
}

std::unique_ptr<Processes::Pending> Processes::StartSum(const at::Tensor& tensor) const {
  if (!group_) return std::make_unique<Pending>();
  return std::make_unique<Work>(
      group_, tensor, [&](std::vector<at::Tensor>& host) { return group_->gloo->allreduce(host); });
}

void Processes::Sum(const at::Tensor& tensor) const { StartSum(tensor)->Wait(); }

void Processes::Broadcast(const at::Tensor& tensor) const {
  if (!group_) return;
  Work(group_, tensor, [&](std::vector<at::Tensor>& host) {
    return group_->gloo->broadcast(host);
  }).Wait();
  MarkChanged(tensor);  // Gloo writes past torch's count of changes
}

at::Tensor Processes::Exchange(const at::Tensor& sent, const std::vector<std::int64_t>& counts,
                               const std::vector<std::int64_t>& received) const {
  if (!group_) return sent;
  const auto in_bytes = [&](std::vector<std::int64_t> numbers) {
    for (std::int64_t& number : numbers) number *= static_cast<std::int64_t>(sent.element_size());
    return numbers;
  };
  // As bytes, because gloo does not know every dtype.
  std::vector<std::int64_t> from = in_bytes(counts), to = in_bytes(received);
  at::Tensor source = sent.cpu().view(at::kByte);
  const at::Tensor bytes = at::empty({c10::sum_integers(to)}, at::kByte);
  Work(group_, bytes, [&](std::vector<at::Tensor>& host) {
    return group_->gloo->alltoall_base(host[0], source, to, from);
  }).Wait();
  return bytes.view(sent.scalar_type()).to(sent.device());
}

bool Processes::Agree(const at::Tensor& tensor) const {
  if (!group_) return true;
  const at::Tensor host = tensor.cpu();
  const float* values = host.const_data_ptr<float>();
  std::uint64_t hash = 14695981039346656037U;  // FNV-1a
  for (std::int64_t i = 0; i < tensor.numel(); ++i) {
    hash = (hash ^ std::bit_cast<std::uint32_t>(values[i])) * 1099511628211U;
  }
  const auto own = static_cast<std::int64_t>(hash);
  const at::Tensor first = at::scalar_tensor(own, at::kLong);
  Broadcast(first);
  const at::Tensor others = at::scalar_tensor(first.item<std::int64_t>() == own ? 0 : 1, at::kLong);
  Sum(others);
  return others.item<std::int64_t>() == 0;
}

void Processes::Together(const std::function<void()>& body) const {
  try {
    body();
  } catch (const LostProcess&) {
    throw;
  } catch (const Interrupted&) {
    throw;
  } catch (const std::exception& error) {
    if (group_) {
      try {
        group_->store->set("failure", fmt::format("rank {} failed: {}", Rank(), error.what()));
      } catch (const c10::Error&) {
        // The error itself matters more than that the others hear of it.
      }
    }
    throw;
  }
}

}  // namespace tsallis::lab
