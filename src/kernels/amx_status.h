#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace tidepool::kernels {

/// Whether this process may use tiles (AMX with bfloat16 products), and if not, why.
enum class AmxStatus : uint8_t {
  kUnsupportedByCpu,  ///< the processor does not name them
  kRefusedByOs,       ///< the operating system does not give leave to use them
  kFaulted,           ///< all say yes, and the first tile instruction faults: some virtual machines are like that
  kWrongResult,       ///< a small product came out wrong
  kReady,
};

/// Asks processor and operating system and then multiplies one tile, all of it on the first call; the answer stays.
/// The leave that the system gives is for all threads of the process. Thread-safe, but for the time of the first call
/// the handlers of SIGILL and SIGSEGV are ours: make it before threads that may fault.
[[nodiscard]] AmxStatus amx_status();

/// A phrase for people: "not named by this processor", ...
[[nodiscard]] std::string_view amx_status_text(AmxStatus status);

/// `products` products of tiles, 16 x 16 x 32 each, on registers: what measures the tiles' peak. The status must be
/// kReady.
void multiply_tiles(size_t products) noexcept;

}  // namespace tidepool::kernels
