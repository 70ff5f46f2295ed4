// Denormal numbers are worked on as zeros in the lab: they are a hundred times slower.
#pragma once

namespace tsallis::lab {

// From now on, in the calling thread and in the threads that work for it. The mode belongs to a
// thread, and threads that started before would keep theirs: results would depend on which of them
// worked on what.
void FlushDenormals();

}  // namespace tsallis::lab
