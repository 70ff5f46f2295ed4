// Describes this build. The build generates the definitions (cmake/GitCommit.cmake).
#pragma once

namespace tsallis {

// "0.1.0".
const char* Version();

// The full commit hash, with "-dirty" if tracked files differed from it when this was built;
// "unknown" outside a checkout.
const char* GitCommit();

}  // namespace tsallis
