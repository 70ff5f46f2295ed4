// The only threading interface. Neither way lets results depend on the number of threads: a range
// is split into pieces whose results do not mix, or tasks that know nothing of each other are
// handed out.
#pragma once

#include <cstdint>
#include <functional>

#include "tsallis/types.h"

namespace tsallis {

// Threads that `context` asks for (at least 1). Throws InvalidArgument for a context of another
// device.
int Threads(const Context& context);

// Calls body(begin, end) on disjoint pieces of about equal length that cover [0, count): one for
// each thread, but at most ceil(count / grain). A single piece runs in the calling thread, and so
// does the whole range inside a parallel region. An exception from any piece is rethrown here.
void ParallelFor(const Context& context, std::int64_t count, std::int64_t grain,
                 const std::function<void(std::int64_t begin, std::int64_t end)>& body);

// Calls body(task, worker) for every task in [0, count), with worker in [0, Workers(context,
// count)). Tasks begin in ascending order. Their costs may differ, and they share nothing but a
// worker's scratch memory. Exceptions as above; tasks not yet begun are then dropped.
int Workers(const Context& context, std::int64_t count);
void ParallelTasks(const Context& context, std::int64_t count,
                   const std::function<void(std::int64_t task, int worker)>& body);

}  // namespace tsallis
