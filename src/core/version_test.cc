#include "core/version.h"

#include <gtest/gtest.h>

#include <regex>
#include <string>

namespace tsallis {
namespace {

TEST(VersionTest, HasThreeNumbers) {
  EXPECT_TRUE(std::regex_match(Version(), std::regex(R"(\d+\.\d+\.\d+)"))) << Version();
}

TEST(VersionTest, CommitIsAHashOrUnknown) {
  const std::string commit = GitCommit();
  EXPECT_TRUE(std::regex_match(commit, std::regex("([0-9a-f]{40})(-dirty)?|unknown"))) << commit;
}

}  // namespace
}  // namespace tsallis
