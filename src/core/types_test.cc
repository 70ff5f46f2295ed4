#include "tsallis/types.h"

#include <gtest/gtest.h>

#include "tsallis/error.h"

namespace tsallis {
namespace {

TEST(TypesTest, NamesAndSizes) {
  EXPECT_STREQ(Name(DType::kFloat32), "float32");
  EXPECT_STREQ(Name(DType::kBFloat16), "bfloat16");
  EXPECT_STREQ(Name(DType::kFloat16), "float16");
  EXPECT_STREQ(Name(DType::kFloat64), "float64");
  EXPECT_EQ(SizeOf(DType::kFloat32), 4u);
  EXPECT_EQ(SizeOf(DType::kBFloat16), 2u);
  EXPECT_EQ(SizeOf(DType::kFloat16), 2u);
  EXPECT_EQ(SizeOf(DType::kFloat64), 8u);
}

TEST(ErrorTest, NamesTheArgumentAndWhatCame) {
  const InvalidArgument error("alpha", "a finite value >= 1", "0.5");
  EXPECT_STREQ(error.what(), "alpha: expected a finite value >= 1, got 0.5");
  EXPECT_EQ(error.argument(), "alpha");
  EXPECT_EQ(error.expected(), "a finite value >= 1");
  EXPECT_EQ(error.actual(), "0.5");
}

}  // namespace
}  // namespace tsallis
