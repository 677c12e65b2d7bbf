#include "image/resize.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "image/image_test_support.h"

namespace tidepool {
namespace {

using image_test::noise_image;
using image_test::short_sum;

struct Resize {
  size_t in_width, in_height, out_width, out_height;
  const char* sum;
};

/// What Pillow 9.4 gives for noise_image(w, h, 1000 w + h) with Image.resize((W, H), Image.BICUBIC).
constexpr Resize kResizes[] = {
    {50, 37, 98, 73, "9d6ea8dd48cf3754"},     {1, 1, 546, 546, "30274387f6ccea1a"},
    {1, 50, 17, 33, "077a761e2da71c86"},      {3, 2, 42, 28, "b13b8f3f266102a5"},
    {200, 150, 42, 28, "71fae6069c8db2da"},   {640, 48, 98, 14, "374750e1fcb5f2b4"},
    {97, 101, 97, 40, "06bf19c4d5334628"},    {97, 101, 31, 101, "bbe310852e565584"},
    {333, 222, 332, 221, "4ece034e018def70"}, {5, 500, 14, 42, "d078786eb336051c"},
    {1000, 7, 1708, 12, "194144bff1421857"},  {64, 64, 64, 64, "3c7a0156efcdc70f"},
};

TEST(Resize, IsPillowsToTheBit) {
  for (const Resize& r : kResizes) {
    const RgbImage image = noise_image(r.in_width, r.in_height, static_cast<uint32_t>(r.in_width * 1000 + r.in_height));
    const RgbImage scaled = resize_bicubic(image, r.out_width, r.out_height);
    EXPECT_EQ(short_sum(scaled), r.sum) << r.in_width << " x " << r.in_height << " to " << r.out_width << " x "
                                        << r.out_height;
  }
}

TEST(Resize, ASingleColourStaysThatColour) {
  const RgbImage image(31, 17, 201);
  for (const auto& [width, height] : {std::pair<size_t, size_t>{5, 3}, {200, 90}, {1, 1}, {31, 90}}) {
    const RgbImage scaled = resize_bicubic(image, width, height);
    EXPECT_TRUE(std::ranges::all_of(scaled.pixels, [](uint8_t value) { return value == 201; }));
  }
}

TEST(Resize, MirroredPicturesScaleToMirroredPictures) {
  const RgbImage image = noise_image(40, 24, 3);
  RgbImage mirrored(40, 24);
  for (size_t i = 0; i < size_t{40} * 24; ++i)
    std::copy_n(image.pixels.begin() + static_cast<int64_t>(3 * i), 3,
                mirrored.pixels.end() - static_cast<int64_t>(3 * (i + 1)));
  const RgbImage a = resize_bicubic(image, 10, 48);
  const RgbImage b = resize_bicubic(mirrored, 10, 48);
  for (size_t i = 0; i < size_t{10} * 48; ++i) {
    for (size_t c = 0; c < 3; ++c)
      EXPECT_NEAR(a.pixels[3 * i + c], b.pixels[3 * (10 * 48 - 1 - i) + c], 1);  // rounding may fall either way
  }
}

TEST(Canvas, HoldsThePictureInPlaceAndGreyAroundIt) {
  const RgbImage image = noise_image(3, 2, 9);
  const RgbImage canvas = place_on_canvas(image, 5, 4, 1, 2, 127);
  for (size_t y = 0; y < 4; ++y) {
    for (size_t x = 0; x < 15; ++x) {
      const bool is_inside = y >= 2 && x >= 3 && x < 12;
      EXPECT_EQ(canvas.row(y)[x], is_inside ? image.row(y - 2)[x - 3] : 127);
    }
  }
}

}  // namespace
}  // namespace tidepool
