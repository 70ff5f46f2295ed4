#include "core/atomic_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <system_error>
#include <utility>

namespace tsallis {
namespace {

namespace fs = std::filesystem;

std::string Read(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

class AtomicFileTest : public testing::Test {
 protected:
  AtomicFileTest() {
    std::string name = (fs::temp_directory_path() / "tsallis-aside-XXXXXX").string();
    folder_ = mkdtemp(name.data());
  }
  ~AtomicFileTest() override { fs::remove_all(folder_); }

  fs::path folder_;
};

TEST_F(AtomicFileTest, IsThereWholeOrNotAtAll) {
  const std::string path = folder_ / "file", aside = folder_ / "file.tmp";
  std::ofstream(aside) << "of a writer that was killed";
  {
    AtomicFile out(path);
    out.Write("abc", 3);
    EXPECT_FALSE(fs::exists(path));
    out.Write("def", 3);
    out.Commit();
  }
  EXPECT_EQ(Read(path), "abcdef");
  EXPECT_FALSE(fs::exists(aside));
  {
    AtomicFile out(path);
    out.Write("gh", 2);
  }
  EXPECT_EQ(Read(path), "abcdef");
  EXPECT_FALSE(fs::exists(aside));
}

TEST_F(AtomicFileTest, SaysWhatCannotBeWritten) {
  const auto message = [](const auto& act) -> std::string {
    try {
      act();
    } catch (const std::system_error& error) {
      return error.what();
    }
    return "no error";
  };
  const std::string missing = folder_ / "none" / "file";
  EXPECT_EQ(message([&] { AtomicFile{missing}; }),
            missing + ": cannot be written: No such file or directory");
  const std::string folder = folder_ / "folder";
  fs::create_directory(folder);
  EXPECT_EQ(message([&] { AtomicFile(folder).Commit(); }),
            folder + ": cannot be replaced: Is a directory");
  EXPECT_FALSE(fs::exists(folder + ".tmp"));
  // The aside is a link, for it goes away with the object.
  if (fs::exists("/dev/full")) {
    const std::string path = folder_ / "full";
    fs::create_symlink("/dev/full", path + ".tmp");
    EXPECT_EQ(message([&] { AtomicFile(path).Write("x", 1); }),
              path + ": writing failed: No space left on device");
  }
}

TEST_F(AtomicFileTest, FollowsLinksAndReplacesNothingButFiles) {
  const fs::path there = folder_ / "there", target = there / "file", link = folder_ / "link";
  fs::create_directory(there);
  std::ofstream(target) << "old";
  fs::create_symlink("there/file", link);
  {
    AtomicFile out(link);
    out.Write("new", 3);
    out.Commit();
  }
  EXPECT_TRUE(fs::is_symlink(link));
  EXPECT_EQ(Read(target), "new");

  const std::string pipe = folder_ / "pipe", dead = folder_ / "dead";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  fs::create_symlink("nowhere", dead);
  for (const auto& [path, why] : {std::pair<std::string, std::string>{pipe, "is no regular file"},
                                  {dead, "is a link to nothing"}}) {
    try {
      AtomicFile out(path);
      ADD_FAILURE() << path;
    } catch (const std::system_error& error) {
      EXPECT_EQ(std::string(error.what()).rfind(path + ": " + why, 0), 0) << error.what();
    }
  }
  EXPECT_TRUE(fs::is_fifo(pipe));
}

}  // namespace
}  // namespace tsallis
