#pragma once

namespace tidepool::kernels {

/// Runs body(context) on this thread; false when it ends in SIGILL or SIGSEGV. The handlers that were there before are
/// back afterwards. One call at a time in the process.
[[nodiscard]] bool survives(void (*body)(void* context), void* context) noexcept;

}  // namespace tidepool::kernels
