#include "base/buffer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
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

TEST(Buffer, OfAHugePageAndMoreLiesOnItsBoundary) {
  constexpr size_t kHugePage = size_t{2} << 20;
  for (const size_t size : {kHugePage, kHugePage + 1, 3 * kHugePage - 1}) {
    const Buffer<std::byte> buffer(size);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % kHugePage, 0U) << size;
    EXPECT_EQ(std::ranges::count(buffer.span(), std::byte{0}), static_cast<int64_t>(size));
  }
}

TEST(Buffer, UninitialisedOnesAreAlignedAndWritable) {
  for (const size_t size : {size_t{1}, size_t{1000}, size_t{3} << 20}) {
    Buffer<float> buffer = Buffer<float>::uninitialised(size);
    ASSERT_EQ(buffer.size(), size);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % Buffer<float>::kAlignment, 0U);
    buffer[size - 1] = 1;
    EXPECT_EQ(buffer[size - 1], 1.0F);
  }
  EXPECT_EQ(Buffer<float>::uninitialised(0).data(), nullptr);
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
