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
  open_ = 0;
  used_ = 0;
}

template <typename Real>
size_t Tape<Real>::bytes_reserved() const {
  size_t total = 0;
  for (const Slab& slab : slabs_)
    total += slab.bytes;
  return total;
}

template <typename Real>
std::byte* Tape<Real>::take_bytes(size_t bytes) {
  bytes = std::max(aligned(bytes), kAlignment);
  if (open_ == 0 || used_ + bytes > slabs_[open_ - 1].bytes) open_slab(bytes);
  std::byte* const memory = slabs_[open_ - 1].memory.get();
  const auto address = reinterpret_cast<uintptr_t>(memory);
  std::byte* const taken = memory + (aligned(address) - address) + used_;
  used_ += bytes;
  return taken;
}

template <typename Real>
void Tape<Real>::open_slab(size_t bytes) {
  const auto place_of = [this](size_t slab) { return slabs_.begin() + static_cast<std::ptrdiff_t>(slab); };
  // The smallest that is large enough: larger ones stay for what needs them.
  size_t best = slabs_.size();
  for (size_t slab = open_; slab < slabs_.size(); ++slab) {
    const bool has_room = slabs_[slab].bytes >= bytes;
    if (has_room && (best == slabs_.size() || slabs_[slab].bytes < slabs_[best].bytes)) best = slab;
  }
  if (best == slabs_.size()) {
    // Slabs that this pass has not come to are too small for it, and make room. So what is held only grows where all
    // of it is in use: each new greatest size would else add a slab for good.
    const size_t size = std::max(bytes, kSlabBytes);
    for (size_t freed = 0; freed < size && slabs_.size() > open_; slabs_.pop_back())
      freed += slabs_.back().bytes;
    best = slabs_.size();
    slabs_.push_back({std::make_unique_for_overwrite<std::byte[]>(size + kAlignment), size});
  }
  std::rotate(place_of(open_), place_of(best), place_of(best + 1));
  ++open_;
  used_ = 0;
}

template class Tape<float>;
template class Tape<double>;

}  // namespace tidepool
