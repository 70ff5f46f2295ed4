#include "core/aside_file.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <system_error>

namespace tsallis {
namespace {

namespace fs = std::filesystem;

std::string Read(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

class AsideFileTest : public testing::Test {
 protected:
  AsideFileTest() {
    std::string name = (fs::temp_directory_path() / "tsallis-aside-XXXXXX").string();
    folder_ = mkdtemp(name.data());
  }
  ~AsideFileTest() override { fs::remove_all(folder_); }

  fs::path folder_;
};

TEST_F(AsideFileTest, IsThereWholeOrNotAtAll) {
  const std::string path = folder_ / "file", aside = folder_ / "file.tmp";
  std::ofstream(aside) << "of a writer that was killed";
  {
    AsideFile out(path, aside);
    out.Write("abc", 3);
    EXPECT_FALSE(fs::exists(path));
    out.Write("def", 3);
    out.Commit();
  }
  EXPECT_EQ(Read(path), "abcdef");
  EXPECT_FALSE(fs::exists(aside));
  {
    AsideFile out(path, aside);
    out.Write("gh", 2);
  }
  EXPECT_EQ(Read(path), "abcdef");
  EXPECT_FALSE(fs::exists(aside));
}

TEST_F(AsideFileTest, SaysWhatCannotBeWritten) {
  const auto message = [](const auto& act) -> std::string {
    try {
      act();
    } catch (const std::system_error& error) {
      return error.what();
    }
    return "no error";
  };
  const std::string missing = folder_ / "none" / "file";
  EXPECT_EQ(message([&] { AsideFile(missing, missing + ".tmp"); }),
            missing + ": cannot be written: No such file or directory");
  const std::string folder = folder_ / "folder";
  fs::create_directory(folder);
  EXPECT_EQ(message([&] { AsideFile(folder, folder + ".tmp").Commit(); }),
            folder + ": cannot be replaced: Is a directory");
  EXPECT_FALSE(fs::exists(folder + ".tmp"));
  // The aside is a link, for it goes away with the object.
  if (fs::exists("/dev/full")) {
    const std::string path = folder_ / "full", aside = folder_ / "aside";
    fs::create_symlink("/dev/full", aside);
    EXPECT_EQ(message([&] { AsideFile(path, aside).Write("x", 1); }),
              path + ": writing failed: No space left on device");
  }
}

}  // namespace
}  // namespace tsallis
