#include "base/buffer.h"

#include <sys/mman.h>

#include <cstddef>
#include <new>

namespace tidepool {

void* allocate_array(size_t bytes) {
  constexpr size_t kHugePage = size_t{2} << 20;
  const bool is_large = bytes >= kHugePage;
  const size_t alignment = is_large ? kHugePage : Buffer<std::byte>::kAlignment;
  // std::aligned_alloc takes multiples of the alignment only.
  void* memory = nullptr;
  if (::posix_memalign(&memory, alignment, bytes) != 0) throw std::bad_alloc();
  // The part behind the last whole huge page stays as it is; a kernel without huge pages refuses, and nothing is lost.
  if (is_large) (void)::madvise(memory, bytes / kHugePage * kHugePage, MADV_HUGEPAGE);
  return memory;
}

}  // namespace tidepool
