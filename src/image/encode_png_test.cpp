#include "image/encode_png.h"

#include <gtest/gtest.h>

#include "image/decode.h"
#include "image/image_test_support.h"

namespace tidepool {
namespace {

TEST(EncodePng, DecodesToTheSamePixels) {
  for (const auto& [width, height] : {std::pair<size_t, size_t>(1, 1), {7, 3}, {84, 84}}) {
    const RgbImage image = image_test::noise_image(width, height, 5);
    const std::string file = encode_png(image);
    EXPECT_EQ(image_format_of(image_test::bytes_of(file)), ImageFormat::kPng);
    EXPECT_EQ(decode_image(image_test::bytes_of(file), "picture"), image);
  }
}

}  // namespace
}  // namespace tidepool
