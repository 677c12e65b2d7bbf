#pragma once

#include <cstddef>
#include <cstring>
#include <type_traits>

namespace tidepool::store {

/// Values in files lie as they do in memory, at any address; all numbers are little-endian.
template <typename T>
void put(std::byte* at, const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  std::memcpy(at, &value, sizeof value);
}
template <typename T>
[[nodiscard]] T get(const std::byte* at) {
  static_assert(std::is_trivially_copyable_v<T>);
  T value{};
  std::memcpy(&value, at, sizeof value);
  return value;
}

}  // namespace tidepool::store
