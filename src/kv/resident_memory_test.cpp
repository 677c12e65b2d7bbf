// Counts what this program takes from the heap, to see what a sequence really costs.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "kv/kv_test_support.h"
#include "kv/sequence_state.h"

namespace {

/// Bytes asked for so far, less those given back. Relaxed: the test that looks at it has one thread.
std::atomic<int64_t> heap_bytes = 0;

/// The size stands in front of what is handed out, a whole alignment away.
void* take(size_t bytes, size_t alignment) {
  const size_t front = std::max(alignment, alignof(std::max_align_t));
  const size_t total = (bytes + front + alignment - 1) / alignment * alignment;
  auto* memory = static_cast<unsigned char*>(std::aligned_alloc(std::max(alignment, alignof(std::max_align_t)), total));
  if (memory == nullptr) throw std::bad_alloc();
  *reinterpret_cast<size_t*>(memory) = bytes;
  heap_bytes.fetch_add(static_cast<int64_t>(bytes), std::memory_order_relaxed);
  return memory + front;
}

void give_back(void* pointer, size_t alignment) noexcept {
  if (pointer == nullptr) return;
  auto* memory = static_cast<unsigned char*>(pointer) - std::max(alignment, alignof(std::max_align_t));
  heap_bytes.fetch_sub(static_cast<int64_t>(*reinterpret_cast<size_t*>(memory)), std::memory_order_relaxed);
  std::free(memory);
}

}  // namespace

// Sizes are rounded up to the alignment, as aligned_alloc wants it.
void* operator new(size_t bytes) {
  constexpr size_t kAlignment = alignof(std::max_align_t);
  return take((bytes + kAlignment - 1) / kAlignment * kAlignment, kAlignment);
}
void* operator new(size_t bytes, std::align_val_t alignment) {
  return take(bytes, static_cast<size_t>(alignment));
}
void operator delete(void* pointer) noexcept {
  give_back(pointer, alignof(std::max_align_t));
}
void operator delete(void* pointer, size_t) noexcept {
  give_back(pointer, alignof(std::max_align_t));
}
void operator delete(void* pointer, std::align_val_t alignment) noexcept {
  give_back(pointer, static_cast<size_t>(alignment));
}
void operator delete(void* pointer, size_t, std::align_val_t alignment) noexcept {
  give_back(pointer, static_cast<size_t>(alignment));
}

namespace tidepool {
namespace {

using kv_testing::released_layout;

/// Released shapes: 890 bytes of KV and 8 of token id a position, and less than 4 MB whatever the length.
TEST(ResidentMemory, SequenceTakesThePublishedBytes) {
  const auto shared = released_layout(3);
  for (const int64_t tokens : {int64_t{0}, int64_t{12'800}, int64_t{128'000}}) {
    const int64_t before = heap_bytes;
    SequenceState state(shared);
    state.append(std::vector<InputToken>(static_cast<size_t>(tokens)));
    const int64_t used = heap_bytes - before;
    EXPECT_GE(used, 890 * tokens);
    EXPECT_LT(used, (890 + 8) * tokens + 4'000'000) << tokens;
  }
  const int64_t before = heap_bytes;
  {
    SequenceState state(shared);
    state.append(std::vector<InputToken>(1000));
  }
  EXPECT_EQ(heap_bytes, before);
}

}  // namespace
}  // namespace tidepool
