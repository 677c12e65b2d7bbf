#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>

#include "base/thread_pool.h"

/// What this machine can do at most, measured beside the kernels that are judged by it.
namespace tidepool::bench {

/// Ways to read memory that a thread may be fastest with.
inline constexpr size_t kReadStreams[] = {1, 4};

/// Bytes per second at which all threads together read `bytes` once, each thread in `streams` places at a time (one of
/// kReadStreams). It should be far larger than the caches.
[[nodiscard]] double measure_read_bandwidth(ThreadPool& pool, std::span<const std::byte> bytes, size_t streams);

/// Units that multiply, each with a ceiling of its own.
enum class Multiplier : uint8_t {
  kScalar,      ///< binary32, no fusing
  kAvx2,        ///< fused multiply-adds of binary32
  kAvx512,      ///< the same
  kAvx512Bf16,  ///< VDPBF16PS
  kAmxBf16,     ///< TDPBF16PS
};

/// Whether this processor has it.
[[nodiscard]] bool has_multiplier(Multiplier multiplier);

/// Floating point operations per second on registers, all threads together. The processor must have the multiplier.
[[nodiscard]] double measure_peak_flops(ThreadPool& pool, Multiplier multiplier);

/// Bytes per second of reading a new file of 256 MiB in `folder` from its device, past the page cache, in blocks of
/// 4 MiB, one at a time; nothing where the file system cannot (those in memory cannot). Throws Error(kIo) where the
/// file cannot be written.
[[nodiscard]] std::optional<double> measure_disk_read(const std::filesystem::path& folder);

}  // namespace tidepool::bench
