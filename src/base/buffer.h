#pragma once

#include <cstddef>
#include <cstring>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>

namespace tidepool {

/// Memory on a 64-byte boundary; contents are open. From a huge page's size on (2 MiB) it lies on such a boundary and
/// asks for huge pages, which the system clears in one go where 512 small ones would each be a fault. Throws
/// std::bad_alloc.
[[nodiscard]] void* allocate_array(size_t bytes);
/// Gives back what allocate_array made of as many bytes.
void free_array(void* memory, size_t bytes) noexcept;

/// An owned array of plain values by allocate_array(), on a 64-byte boundary (a cache line, an AVX-512 register, an AMX
/// tile row), zeroed when made. Move-only: a copy of megabytes should be asked for by name (`copy()`).
template <typename T>
requires(std::is_trivially_copyable_v<T>) class Buffer {
 public:
  static constexpr size_t kAlignment = 64;

  Buffer() = default;
  explicit Buffer(size_t size) : Buffer(uninitialised(size)) {
    if (size != 0) std::memset(static_cast<void*>(data_.get()), 0, size * sizeof(T));
  }
  /// One whose contents are open: memory is first touched by whoever writes it, on that thread's node.
  [[nodiscard]] static Buffer uninitialised(size_t size) {
    Buffer result;
    if (size == 0) return result;
    result.data_ = {static_cast<T*>(allocate_array(size * sizeof(T))), Free{size * sizeof(T)}};
    result.size_ = size;
    return result;
  }

  [[nodiscard]] Buffer copy() const {
    Buffer result = uninitialised(size_);
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
    size_t bytes = 0;
    void operator()(T* pointer) const { free_array(pointer, bytes); }
  };

  std::unique_ptr<T, Free> data_;
  size_t size_ = 0;
};

}  // namespace tidepool
