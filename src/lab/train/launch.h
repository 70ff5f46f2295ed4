// How this process was started: alone, or as one of several by torchrun.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace tsallis::lab {

// How long a process waits for another one before it is taken for lost; TSALLIS_PROCESS_TIMEOUT, in
// seconds, says otherwise. Longer than the first process may take to write a checkpoint.
inline constexpr std::chrono::seconds kProcessTimeout{300};

struct Launch {
  int rank = 0;
  int size = 1;
  int local_rank = 0;  // among the processes of this machine
  std::string host;    // of the store that the processes find each other in
  std::uint16_t port = 0;
  bool store_is_there = false;  // torchrun keeps the store; otherwise the first process does
  std::string attempt = "0";    // torchrun starts all processes again, --max-restarts times
  std::string interface;        // network interface; empty: that of the machine's name
  std::chrono::milliseconds timeout = kProcessTimeout;
};

// Reads RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, what torchrun adds to them (LOCAL_RANK and
// its store), GLOO_SOCKET_IFNAME and TSALLIS_PROCESS_TIMEOUT. Without RANK and WORLD_SIZE the
// process is alone. UsageError if variables are missing or make no sense. `variable` gives the
// value of one; null if it is not set.
Launch ReadLaunch(const std::function<const char*(const char*)>& variable);

}  // namespace tsallis::lab
