#pragma once

#include <cstddef>
#include <cstring>
#include <memory>
#include <new>
#include <span>
#include <type_traits>
#include <utility>

namespace tidepool {

/// An owned array of plain values on a 64-byte boundary (a cache line, an AVX-512 register, an AMX tile row), zeroed
/// when made. Move-only: a copy of megabytes should be asked for by name (`copy()`).
template <typename T>
requires(std::is_trivially_copyable_v<T>) class Buffer {
 public:
  static constexpr size_t kAlignment = 64;

  Buffer() = default;
  explicit Buffer(size_t size) : data_(size == 0 ? nullptr : allocate(size)), size_(size) {
    if (size != 0) std::memset(static_cast<void*>(data_.get()), 0, size * sizeof(T));
  }

  [[nodiscard]] Buffer copy() const {
    Buffer result(size_);
    if (size_ != 0) std::memcpy(result.data(), data(), size_ * sizeof(T));
    return result;
  }
  [[nodiscard]] T* data() { return data_.get(); }
  [[nodiscard]] const T* data() const { return data_.get(); }
  [[nodiscard]] size_t size() const { return size_; }
  [[nodiscard]] std::span<T> span() { return {data(), size_}; }
  [[nodiscard]] std::span<const T> span() const { return {data(), size_}; }
  T& operator[](size_t index) { return data_.get()[index]; }
  const T& operator[](size_t index) const { return data_.get()[index]; }

 private:
  struct Free {
    void operator()(T* pointer) const { ::operator delete (static_cast<void*>(pointer), std::align_val_t{kAlignment}); }
  };
  static T* allocate(size_t size) {
    return static_cast<T*>(::operator new (size * sizeof(T), std::align_val_t{kAlignment}));
  }

  std::unique_ptr<T, Free> data_;
  size_t size_ = 0;
};

}  // namespace tidepool
