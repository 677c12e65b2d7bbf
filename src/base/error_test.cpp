#include "base/error.h"

#include <gtest/gtest.h>

namespace tidepool {
namespace {

TEST(Error, CarriesCodeAndMessage) {
  const Error error(ErrorCode::kCorrupt, "model.safetensors: header is cut off");
  EXPECT_EQ(error.code(), ErrorCode::kCorrupt);
  EXPECT_STREQ(error.what(), "model.safetensors: header is cut off");
  EXPECT_EQ(error_code_name(error.code()), "corrupt");
}

}  // namespace
}  // namespace tidepool
