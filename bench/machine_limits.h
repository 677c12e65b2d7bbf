#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "base/thread_pool.h"

/// What this machine can do at most, measured beside the kernels that are judged by it.
namespace tidepool::bench {

/// Bytes per second at which all threads together read `bytes` once. It should be far larger than the caches.
[[nodiscard]] double measure_read_bandwidth(ThreadPool& pool, std::span<const std::byte> bytes);

/// Floating point operations per second of fused multiply-adds on registers, all threads together, with the vectors of
/// `isa` ("avx512", "avx2"; anything else: scalar SSE, no fusing). The processor must have them.
[[nodiscard]] double measure_peak_flops(ThreadPool& pool, std::string_view isa);

}  // namespace tidepool::bench
