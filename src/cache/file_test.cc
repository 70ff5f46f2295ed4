// Sequences in files: the same bits come back, and no file that is not whole is read.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <system_error>
#include <vector>

#include "cache/testing/cases.h"
#include "tsallis/kv_cache.h"

namespace tsallis {
namespace {

using namespace cache_testing;
namespace fs = std::filesystem;

constexpr Context kOne{.threads = 1};

class Folder {
 public:
  Folder() {
    std::string name = (fs::temp_directory_path() / "tsallis-cache-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) std::abort();
    path_ = name;
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() { fs::remove_all(path_); }

  std::string At(const char* name) const { return (path_ / name).string(); }
  std::int64_t Files() const {
    return std::distance(fs::directory_iterator(path_), fs::directory_iterator());
  }

 private:
  fs::path path_;
};

std::string Contents(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void Write(const std::string& path, const std::string& contents) {
  std::ofstream(path, std::ios::binary) << contents;
}

// A cache of two layers that hold `tokens` and `tokens` + 1.
KvCache::Sequence Fill(const Case& c, KvCache& cache) {
  const KvCache::Sequence sequence = cache.Create();
  for (std::int64_t layer = 0; layer < 2; ++layer) {
    const std::int64_t count = c.tokens + layer;
    const auto seed = static_cast<std::uint64_t>(10 * layer);
    cache.Append(kOne, sequence, layer,
                 Normal(seed, c.dtype, c.kv_heads, count, c.head_dim).Array(),
                 Normal(seed + 1, c.dtype, c.kv_heads, count, c.value_dim).Array(), count);
  }
  return sequence;
}

TEST(KvCacheFile, ComesBackWithTheSameBits) {
  const Folder folder;
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    for (const std::int64_t tokens : {0, 1, 63, 64, 65, 300}) {
      const Case c{.dtype = dtype, .tokens = tokens};
      KvCache cache(ShapeOf(c, 2)), other(ShapeOf(c, 2), {.screen = KeyScreen::kNone});
      const KvCache::Sequence sequence = Fill(c, cache);
      cache.Save(sequence, folder.At("sequence"));
      EXPECT_EQ(folder.Files(), 1) << "nothing is left beside it";
      const TokenRows q = Normal(3, dtype, 6, 1, c.head_dim, 2.0);
      for (KvCache* to : {&cache, &other}) {
        const KvCache::Sequence loaded = to->Load({}, folder.At("sequence"));
        for (std::int64_t layer = 0; layer < 2; ++layer) {
          ASSERT_EQ(to->Length(loaded, layer), tokens + layer);
          if (tokens + layer == 0) continue;
          EXPECT_TRUE(
              OnCache(c, *to, loaded, q, layer).Same(OnCache(c, cache, sequence, q, layer)));
        }
      }
    }
  }
}

TEST(KvCacheFile, IsReplacedByAWholeOneOnly) {
  const Folder folder;
  const Case c{.tokens = 70};
  KvCache cache(ShapeOf(c, 2));
  const KvCache::Sequence sequence = Fill(c, cache);
  Write(folder.At("sequence"), "what stood there before");
  cache.Save(sequence, folder.At("sequence"));
  EXPECT_EQ(cache.Length(cache.Load(kOne, folder.At("sequence"))), 70);
  EXPECT_THROW(cache.Save(sequence, folder.At("no-folder/sequence")), std::system_error);
  EXPECT_THROW(cache.Load(kOne, folder.At("nothing")), std::system_error);
  // A folder cannot be replaced, and nothing stays beside it.
  fs::create_directory(folder.At("folder"));
  EXPECT_THROW(cache.Save(sequence, folder.At("folder")), std::system_error);
  EXPECT_EQ(folder.Files(), 2);
  EXPECT_NE(ErrorOf([&] { cache.Load(kOne, folder.At("folder")); }).find("which is no file"),
            std::string::npos);
}

TEST(KvCacheFile, DamageIsNamed) {
  const Folder folder;
  const Case c{.tokens = 70, .head_dim = 3, .value_dim = 2};
  KvCache cache(ShapeOf(c, 2));
  const KvCache::Sequence sequence = Fill(c, cache);
  const std::string path = folder.At("sequence"), bad = folder.At("bad");
  cache.Save(sequence, path);
  const std::string whole = Contents(path);
  const KvCacheUse before = cache.Use();
  const auto fails = [&](const std::string& contents, const std::string& why) {
    Write(bad, contents);
    const std::string error = ErrorOf([&] { cache.Load(kOne, bad); });
    EXPECT_NE(error.find(bad), std::string::npos) << error;
    EXPECT_NE(error.find(why), std::string::npos) << error;
  };
  // A bit anywhere, a cut anywhere.
  for (std::size_t at = 0; at < whole.size(); at += 1 + at / 50) {
    std::string changed = whole;
    changed[at] = static_cast<char>(changed[at] ^ 4);
    fails(changed, at < 8 ? "does not begin like one" : at < 12 ? "of version" : "damaged");
    fails(whole.substr(0, at), "cut short");
  }
  fails(whole + "x", "1 bytes too long");
  fails("", "cut short");
  fails(std::string(1000, 'x'), "does not begin like one");
  EXPECT_EQ(cache.Use().sequences, before.sequences);
  EXPECT_EQ(cache.Use().pages, before.pages);
}

TEST(KvCacheFile, OtherShapesAndBudgetsAreRefused) {
  const Folder folder;
  const Case c{.tokens = 200, .head_dim = 8, .value_dim = 8};
  KvCache cache(ShapeOf(c, 2));
  cache.Save(Fill(c, cache), folder.At("sequence"));
  KvCacheShape shape = ShapeOf(c, 2);
  const auto error = [&] {
    KvCache other(shape);
    return ErrorOf([&] { other.Load(kOne, folder.At("sequence")); });
  };
  shape.layers = 3;
  EXPECT_NE(error().find("(3 layers, 2 key heads, keys of 8, values of 8, float32), got "),
            std::string::npos);
  EXPECT_NE(error().find("(2 layers, 2 key heads, keys of 8, values of 8, float32)"),
            std::string::npos);
  shape = ShapeOf(c, 2);
  shape.kv_heads = 1;
  EXPECT_NE(error(), "no error");
  shape = ShapeOf(c, 2);
  shape.value_dim = 9;
  EXPECT_NE(error(), "no error");
  shape = ShapeOf(c, 2);
  shape.dtype = DType::kBFloat16;
  EXPECT_NE(error().find("bfloat16"), std::string::npos);

  KvCache small(ShapeOf(c, 2), {.max_bytes = 3 * cache.Use().page_bytes});
  EXPECT_THROW(small.Load(kOne, folder.At("sequence")), CacheFull);
  EXPECT_EQ(small.Use().pages, 0);
  EXPECT_EQ(small.Use().sequences, 0);
}

}  // namespace
}  // namespace tsallis
