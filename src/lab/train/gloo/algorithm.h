// LibTorch has Gloo in it, but not Gloo's headers, which its own ProcessGroupGloo.hpp includes. The
// files of this folder stand in for them (for processes.cc alone, src/CMakeLists.txt) and declare
// no more than that header names. Nothing of Gloo is called or laid out here: what would need a
// class that is not complete does not compile.
#pragma once
