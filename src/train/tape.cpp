#include "train/tape.h"

#include <algorithm>
#include <cstring>

namespace tidepool {

namespace {

constexpr size_t kAlignment = 64;                 // a cache line, and a vector of 16 floats
constexpr size_t kSlabBytes = size_t{64} << 20U;  // few system calls, little waste at the end of one

constexpr size_t aligned(size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

template <typename Real>
Value<Real> Tape<Real>::make(size_t rows, size_t cols) {
  Value<Real> value = make_constant(rows, cols);
  if (is_training()) {
    const std::span<Real> grad = keep<Real>(rows * cols);
    std::ranges::fill(grad, Real{0});
    value.grad = {grad.data(), rows, cols};
  }
  return value;
}

template <typename Real>
Value<Real> Tape<Real>::make_constant(size_t rows, size_t cols) {
  return {{keep<Real>(rows * cols).data(), rows, cols}, {}};
}

template <typename Real>
void Tape<Real>::backward() {
  for (size_t left = closures_.size(); left > 0; --left)
    closures_[left - 1]();
  closures_.clear();
}

template <typename Real>
void Tape<Real>::clear() {
  closures_.clear();
  slab_ = 0;
  used_ = 0;
}

template <typename Real>
size_t Tape<Real>::bytes_reserved() const {
  size_t total = 0;
  for (const size_t bytes : slab_bytes_)
    total += bytes;
  return total;
}

template <typename Real>
std::byte* Tape<Real>::take_bytes(size_t bytes) {
  bytes = std::max(aligned(bytes), kAlignment);
  while (slab_ < slabs_.size() && used_ + bytes > slab_bytes_[slab_]) {
    ++slab_;
    used_ = 0;
  }
  if (slab_ == slabs_.size()) {
    const size_t size = std::max(bytes, kSlabBytes);
    slabs_.push_back(std::make_unique_for_overwrite<std::byte[]>(size + kAlignment));
    slab_bytes_.push_back(size);
  }
  const auto address = reinterpret_cast<uintptr_t>(slabs_[slab_].get());
  std::byte* const start = slabs_[slab_].get() + (aligned(address) - address);
  std::byte* const taken = start + used_;
  used_ += bytes;
  return taken;
}

template class Tape<float>;
template class Tape<double>;

}  // namespace tidepool
