#include "base/buffer.h"

#include <sys/mman.h>

#include <cstddef>
#include <new>

namespace tidepool {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;

std::align_val_t alignment_of(size_t bytes) {
  return std::align_val_t{bytes < kHugePage ? Buffer<std::byte>::kAlignment : kHugePage};
}

}  // namespace

void* allocate_array(size_t bytes) {
  void* memory = ::operator new(bytes, alignment_of(bytes));
  // What is behind the last whole huge page stays as it is; a kernel without huge pages refuses, and nothing is lost.
  if (bytes >= kHugePage) (void)::madvise(memory, bytes / kHugePage * kHugePage, MADV_HUGEPAGE);
  return memory;
}

void free_array(void* memory, size_t bytes) noexcept {
  ::operator delete(memory, alignment_of(bytes));
}

}  // namespace tidepool
