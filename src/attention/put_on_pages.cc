// Writes keys and values to pages of the caller's, and what screens them.
#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "attention/check.h"
#include "attention/pages.h"
#include "core/parallel.h"
#include "tsallis/error.h"

namespace tsallis {
namespace {

using std::to_string;

void CheckTokens(const PageTokens& tokens, const PageArrays& pages) {
  constexpr std::int64_t kMost = std::int64_t{1} << 40;
  CheckSize("tokens.tokens", tokens.tokens, 0, kMost);
  CheckSize("tokens.kv_heads", tokens.kv_heads, 1, kMost);
  CheckSize("tokens.head_dim", tokens.head_dim, 1, 512);
  CheckSize("tokens.value_dim", tokens.value_dim, 1, 512);
  CheckSize("pages.pages", pages.pages, 0, kMost);
  CheckSize("pages.page_size", pages.page_size, 1, kMostPageSize);
  const auto array = [&](const char* name, const ConstArray4& rows, std::int64_t count) {
    if (rows.dtype != tokens.k.dtype) {
      throw InvalidArgument(name, std::string("the dtype of tokens.k, ") + Name(tokens.k.dtype),
                            Name(rows.dtype));
    }
    if (count <= 0 || rows.data != nullptr) return;
    throw InvalidArgument(name, "data", "null");
  };
  array("tokens.k", tokens.k, tokens.tokens);
  array("tokens.v", tokens.v, tokens.tokens);
  array("pages.k", pages.k, pages.pages);
  array("pages.v", pages.v, pages.pages);
  CheckScreen("pages.screen", pages.screen, pages.page_size);
  if (tokens.tokens > 0 && tokens.slots.data == nullptr) {
    throw InvalidArgument("tokens.slots", to_string(tokens.tokens) + " integers", "null");
  }
}

// A token and its slot.
struct Place {
  std::int64_t slot, token;
};

// The tokens by slots: tokens of one page lie side by side, and in their order.
std::vector<Place> PlacesOf(const PageTokens& tokens, const PageArrays& pages) {
  const std::int64_t slots = pages.pages * pages.page_size;
  std::vector<Place> places;
  for (std::int64_t i = 0; i < tokens.tokens; ++i) {
    const std::int64_t slot = IntegerAt(tokens.slots, i);
    if (slot < -1 || slot >= slots) {
      throw InvalidArgument("tokens.slots[" + to_string(i) + "]",
                            "-1, or a slot from 0 to " + to_string(slots - 1), to_string(slot));
    }
    if (slot >= 0) places.push_back({slot, i});
  }
  const auto by_slot = [](const Place& a, const Place& b) { return a.slot < b.slot; };
  if (!std::ranges::is_sorted(places, by_slot)) std::ranges::stable_sort(places, by_slot);
  return places;
}

// Writes tokens of a head whose slots lie among the same 64 keys. floats: [head_dim]
void PutRun(const decode::Functions& functions, const PageTokens& tokens, const PageArrays& pages,
            const Place* places, std::size_t count, std::int64_t head, float* floats) {
  const HeadRows keys = HeadRows::Of(tokens.k, 0, head), values = HeadRows::Of(tokens.v, 0, head);
  const auto size = static_cast<std::int64_t>(SizeOf(keys.dtype));
  const auto at = [&](const MutableArray4& array, std::int64_t page, std::int64_t row) {
    return static_cast<std::byte*>(array.data) + Offset(array.strides, page, head, row) * size;
  };
  for (std::size_t i = 0; i < count; ++i) {
    const auto [slot, token] = places[i];
    const std::int64_t page = slot / pages.page_size, row = slot % pages.page_size;
    CopyRow(keys, token, tokens.head_dim, at(pages.k, page, row), pages.k.strides[3]);
    CopyRow(values, token, tokens.value_dim, at(pages.v, page, row), pages.v.strides[3]);
    if (pages.screen.data == nullptr) continue;
    functions.load(keys, token, tokens.head_dim, floats);
    std::byte* screen = static_cast<std::byte*>(pages.screen.data) + page * pages.screen.page +
                        head * pages.screen.head +
                        row / kScreenKeys * static_cast<std::int64_t>(ScreenBytes(tokens.head_dim));
    const float own = decode::PutKey(floats, tokens.head_dim, row % kScreenKeys, screen);
    float* norm = ScreenNorm(screen, tokens.head_dim);
    *norm = row % kScreenKeys == 0 ? own : std::max(*norm, own);
  }
}

}  // namespace

void CopyRow(const HeadRows& rows, std::int64_t from, std::int64_t columns, std::byte* to,
             std::int64_t step) {
  const auto size = static_cast<std::int64_t>(SizeOf(rows.dtype));
  const auto* row = static_cast<const std::byte*>(rows.At(from));
  if (rows.step == 1 && step == 1) {
    std::memcpy(to, row, static_cast<std::size_t>(columns * size));
    return;
  }
  for (std::int64_t x = 0; x < columns; ++x) {
    std::memcpy(to + x * step * size, row + x * rows.step * size, static_cast<std::size_t>(size));
  }
}

void PutOnPages(const Context& context, const PageTokens& tokens, const PageArrays& pages) {
  if (context.device != DeviceKind::kCpu) {
    throw InvalidArgument("context", "one of the host", "one of a CUDA device");
  }
  CheckTokens(tokens, pages);
  const std::vector<Place> places = PlacesOf(tokens, pages);
  // A task has all tokens for the same 64 slots of a head: no other one writes there.
  std::vector<std::size_t> runs;
  const auto tile = [&](std::size_t i) {
    const std::int64_t page = places[i].slot / pages.page_size;
    return std::pair(page, places[i].slot % pages.page_size / kScreenKeys);
  };
  for (std::size_t i = 0; i < places.size(); ++i) {
    if (i == 0 || tile(i) != tile(i - 1)) runs.push_back(i);
  }
  const auto tasks = static_cast<std::int64_t>(runs.size()) * tokens.kv_heads;
  runs.push_back(places.size());
  const decode::Functions functions = decode::GetFunctions();
  ParallelFor(context, tasks, 4, [&](std::int64_t begin, std::int64_t end) {
    std::vector<float> floats(static_cast<std::size_t>(tokens.head_dim));
    for (std::int64_t task = begin; task < end; ++task) {
      const auto run = static_cast<std::size_t>(task / tokens.kv_heads);
      PutRun(functions, tokens, pages, places.data() + runs[run], runs[run + 1] - runs[run],
             task % tokens.kv_heads, floats.data());
    }
  });
}

}  // namespace tsallis
