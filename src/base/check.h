#pragma once

#include <string_view>

namespace tidepool::detail {
/// Prints file, line, condition and message to stderr and aborts.
[[noreturn]] void check_failed(const char* file, int line, const char* condition, std::string_view message) noexcept;
}  // namespace tidepool::detail

/// Ends the process when one of our own invariants is broken. Always on. For bad input throw Error instead.
#define TIDEPOOL_CHECK(condition, message)                                         \
  do {                                                                             \
    if (!(condition)) [[unlikely]] {                                               \
      ::tidepool::detail::check_failed(__FILE__, __LINE__, #condition, (message)); \
    }                                                                              \
  } while (false)

/// The same for kernel loops: only in builds without NDEBUG.
#ifdef NDEBUG
#define TIDEPOOL_DCHECK(condition, message) \
  do {                                      \
  } while (false)
#else
#define TIDEPOOL_DCHECK(condition, message) TIDEPOOL_CHECK(condition, message)
#endif
