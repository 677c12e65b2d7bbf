#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <vector>

namespace tidepool::bench {

/// Wall seconds of one call.
inline double seconds_of(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Middle value; `values` is not empty.
inline double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

}  // namespace tidepool::bench
