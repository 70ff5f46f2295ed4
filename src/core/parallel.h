// The only threading interface: a static split of a range, so that results never depend on the
// number of threads.
#pragma once

#include <cstdint>
#include <functional>

#include "tsallis/types.h"

namespace tsallis {

// Threads that `context` asks for (at least 1).
int Threads(const Context& context);

// Calls body(begin, end) on disjoint pieces that cover [0, count), at least `grain` long each but
// for the last. Runs in the calling thread if one piece suffices. An exception from any piece is
// rethrown here.
void ParallelFor(const Context& context, std::int64_t count, std::int64_t grain,
                 const std::function<void(std::int64_t begin, std::int64_t end)>& body);

}  // namespace tsallis
