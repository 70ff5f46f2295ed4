#include "lab/train/launch.h"

#include <fmt/format.h>
#include <net/if.h>

#include <charconv>
#include <limits>

#include "lab/base/errors.h"

namespace tsallis::lab {
namespace {

std::int64_t Integer(const char* name, const std::string& text, std::int64_t min,
                     std::int64_t max) {
  std::int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end || value < min || value > max) {
    throw UsageError(
        fmt::format("environment variable {}: expected an integer from {} to {}, got \"{}\"", name,
                    min, max, text));
  }
  return value;
}

}  // namespace

Launch ReadLaunch(const std::function<const char*(const char*)>& variable) {
  const auto text = [&](const char* name) {
    const char* value = variable(name);
    return std::string(value == nullptr ? "" : value);
  };
  const auto needed = [&](const char* name) {
    std::string value = text(name);
    if (value.empty()) {
      throw UsageError(fmt::format(
          "environment variable {}: expected beside RANK or WORLD_SIZE, as torchrun sets it; it is "
          "not set",
          name));
    }
    return value;
  };
  constexpr std::int64_t kMost = std::numeric_limits<int>::max();
  Launch launch;
  if (text("RANK").empty() && text("WORLD_SIZE").empty()) return launch;
  launch.size = static_cast<int>(Integer("WORLD_SIZE", needed("WORLD_SIZE"), 1, kMost));
  launch.rank = static_cast<int>(Integer("RANK", needed("RANK"), 0, launch.size - 1));
  if (const std::string given = text("LOCAL_RANK"); !given.empty()) {
    launch.local_rank = static_cast<int>(Integer("LOCAL_RANK", given, 0, launch.size - 1));
  }
  launch.host = needed("MASTER_ADDR");
  launch.port = static_cast<std::uint16_t>(Integer("MASTER_PORT", needed("MASTER_PORT"), 1, 65535));
  launch.store_is_there = text("TORCHELASTIC_USE_AGENT_STORE") == "True";
  launch.attempt = text("TORCHELASTIC_RESTART_COUNT");
  launch.interface = text("GLOO_SOCKET_IFNAME");
  if (!launch.interface.empty() && if_nametoindex(launch.interface.c_str()) == 0) {
    throw UsageError(
        fmt::format("environment variable GLOO_SOCKET_IFNAME: expected a network interface of this "
                    "machine, got "
                    "\"{}\"",
                    launch.interface));
  }
  if (const std::string given = text("TSALLIS_PROCESS_TIMEOUT"); !given.empty()) {
    launch.timeout = std::chrono::seconds(Integer("TSALLIS_PROCESS_TIMEOUT", given, 1, 1000000));
  }
  return launch;
}

}  // namespace tsallis::lab
