#include "base/arena.h"

#include <algorithm>

namespace tidepool {

namespace {
constexpr size_t kSlabBytes = size_t{4} << 20;  // a decode step of the released model fits in a few of these
constexpr size_t kAlignment = Buffer<std::byte>::kAlignment;
}  // namespace

std::byte* Arena::take_bytes(size_t bytes) {
  const size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  while (slab_ < slabs_.size() && used_ + rounded > slabs_[slab_].size()) {
    ++slab_;
    used_ = 0;
  }
  if (slab_ == slabs_.size()) {
    slabs_.push_back(Buffer<std::byte>::uninitialised(std::max(rounded, kSlabBytes)));
#ifdef _GLIBCXX_ASSERTIONS
    std::ranges::fill(slabs_.back().span(), std::byte{0xff});  // NaN: tests show who reads what he has not written
#endif
    used_ = 0;
  }
  std::byte* result = slabs_[slab_].data() + used_;
  used_ += rounded;
  return result;
}

size_t Arena::bytes_reserved() const {
  size_t total = 0;
  for (const auto& slab : slabs_)
    total += slab.size();
  return total;
}

}  // namespace tidepool
