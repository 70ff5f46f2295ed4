# Writes OUTPUT with the version and the commit of SOURCE, only when they changed, so that nothing is rebuilt
# without need. Run by every build. A tree that is no checkout (or only lies inside one) has commit "unknown"; one
# with changes is "-dirty", but for those under results/, which the program makes and is not made of.
set(git git -c safe.directory=* -C ${SOURCE})
set(commit unknown)
execute_process(COMMAND ${git} rev-parse --show-prefix HEAD OUTPUT_VARIABLE answer RESULT_VARIABLE status
                ERROR_QUIET)
# Two lines: the folder's path inside the checkout, empty at its top, and the commit.
if(status EQUAL 0 AND answer MATCHES "^\n([0-9a-f]+)\n$")
  set(commit ${CMAKE_MATCH_1})
  execute_process(COMMAND ${git} diff --quiet HEAD -- . :!results RESULT_VARIABLE changed OUTPUT_QUIET ERROR_QUIET)
  if(NOT changed EQUAL 0)
    string(APPEND commit "-dirty")
  endif()
endif()
set(text "#include \"core/version.h\"

namespace tsallis {

const char* Version() { return \"${VERSION}\"; }
const char* GitCommit() { return \"${commit}\"; }

}  // namespace tsallis
")
set(old)
if(EXISTS ${OUTPUT})
  file(READ ${OUTPUT} old)
endif()
if(NOT text STREQUAL old)
  file(WRITE ${OUTPUT} "${text}")
endif()
