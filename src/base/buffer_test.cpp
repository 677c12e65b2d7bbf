#include "base/buffer.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <utility>

namespace tidepool {
namespace {

TEST(Buffer, IsZeroedAndAligned) {
  for (const size_t size : {size_t{1}, size_t{7}, size_t{1000}}) {
    const Buffer<float> buffer(size);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % 64, 0U);
    for (const float value : buffer.span()) {
      EXPECT_EQ(value, 0.0F);
    }
  }
}

TEST(Buffer, OfNothingHasNoMemory) {
  EXPECT_EQ(Buffer<float>(0).data(), nullptr);
  EXPECT_EQ(Buffer<float>().size(), 0U);
  EXPECT_EQ(Buffer<float>().copy().size(), 0U);
}

TEST(Buffer, CopiesAreTheirOwn) {
  Buffer<int> original(3);
  original[1] = 5;
  const Buffer<int> copy = original.copy();
  original[1] = 6;
  EXPECT_EQ(copy[1], 5);
}

TEST(Buffer, MovesKeepTheMemory) {
  Buffer<int> original(3);
  original[2] = 7;
  const int* data = original.data();
  const Buffer<int> moved = std::move(original);
  EXPECT_EQ(moved.data(), data);
  EXPECT_EQ(moved[2], 7);
}

}  // namespace
}  // namespace tidepool
