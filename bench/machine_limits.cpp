#include "bench/machine_limits.h"

#include <fcntl.h>
#include <immintrin.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <new>

#include "base/check.h"
#include "base/file.h"
#include "kernels/amx_status.h"

namespace tidepool::bench {
namespace {

/// Makes the compiler believe that `value` is used, so that what computes it stays.
template <typename T>
void keep(const T& value) {
  asm volatile("" : : "m"(value) : "memory");
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Reads `kStreams` parts of the bytes side by side, a cache line of each by turns. Four independent 128-bit loads per
/// line are enough for memory, whatever wider loads the processor has.
template <size_t kStreams>
void read_all(std::span<const std::byte> bytes) {
  const size_t part = bytes.size() / kStreams;
  __m128i sum = _mm_setzero_si128();
  for (size_t i = 0; i + 64 <= part; i += 64) {
    for (size_t stream = 0; stream < kStreams; ++stream) {
      const std::byte* at = bytes.data() + stream * part + i;
      const auto* line = reinterpret_cast<const __m128i*>(at);
      _mm_prefetch(reinterpret_cast<const char*>(at + 4096), _MM_HINT_T0);
      const __m128i low = _mm_xor_si128(_mm_loadu_si128(line), _mm_loadu_si128(line + 1));
      const __m128i high = _mm_xor_si128(_mm_loadu_si128(line + 2), _mm_loadu_si128(line + 3));
      sum = _mm_xor_si128(sum, _mm_xor_si128(low, high));
    }
  }
  keep(sum);
}

constexpr size_t kSteps = 2'000'000;
/// Twelve chains: the latency of 4 cycles times two units, and some to spare.
constexpr size_t kChains = 12;
/// VDPBF16PS takes up to 6 cycles.
constexpr size_t kBf16Chains = 16;

// Written out per instruction set: a template cannot carry a target attribute to what it calls.
__attribute__((target("avx512f"))) void multiply_avx512() {
  __m512 chain[kChains];
  for (__m512& value : chain)
    value = _mm512_set1_ps(1e-3F);
  const __m512 factor = _mm512_set1_ps(0.999F);
  for (size_t i = 0; i < kSteps; ++i) {
    for (__m512& value : chain)
      value = _mm512_fmadd_ps(value, factor, factor);
  }
  for (const __m512& value : chain)
    keep(value);
}
__attribute__((target("avx2,fma"))) void multiply_avx2() {
  __m256 chain[kChains];
  for (__m256& value : chain)
    value = _mm256_set1_ps(1e-3F);
  const __m256 factor = _mm256_set1_ps(0.999F);
  for (size_t i = 0; i < kSteps; ++i) {
    for (__m256& value : chain)
      value = _mm256_fmadd_ps(value, factor, factor);
  }
  for (const __m256& value : chain)
    keep(value);
}
__attribute__((target("avx512f,avx512bf16"))) void multiply_avx512_bf16() {
  __m512 chain[kBf16Chains];
  for (__m512& value : chain)
    value = _mm512_set1_ps(1e-3F);
  // Pairs of small numbers: sums stay finite for any number of steps that ends.
  const auto factor = reinterpret_cast<__m512bh>(_mm512_set1_epi32(0x30003000));
  for (size_t i = 0; i < kSteps; ++i) {
    for (__m512& value : chain)
      value = _mm512_dpbf16_ps(value, factor, factor);
  }
  for (const __m512& value : chain)
    keep(value);
}
void multiply_scalar() {
  float chain[kChains];
  for (float& value : chain)
    value = 1e-3F;
  for (size_t i = 0; i < kSteps; ++i) {
    for (float& value : chain) {
      value = value * 0.999F + 0.999F;
      asm volatile("" : "+x"(value));  // or the compiler makes vectors of it
    }
  }
}

/// What one thread does for a measurement, and the operations that makes.
struct Load {
  void (*run)();
  double operations;
};

constexpr size_t kTileProducts = 500'000;

Load load_of(Multiplier multiplier) {
  constexpr double kFused = 2.0 * kSteps * kChains;
  switch (multiplier) {
    case Multiplier::kScalar: return {multiply_scalar, kFused};
    case Multiplier::kAvx2: return {multiply_avx2, kFused * 8};
    case Multiplier::kAvx512: return {multiply_avx512, kFused * 16};
    case Multiplier::kAvx512Bf16: return {multiply_avx512_bf16, 2.0 * kSteps * kBf16Chains * 32};
    case Multiplier::kAmxBf16:
      return {[] { kernels::multiply_tiles(kTileProducts); }, 2.0 * kTileProducts * 16 * 16 * 32};
  }
  TIDEPOOL_CHECK(false, "not a multiplier");
}

/// Memory on a boundary that direct reads may use.
struct AlignedBlock {
  static constexpr size_t kBytes = size_t{4} << 20;
  std::byte* data = static_cast<std::byte*>(::operator new (kBytes, std::align_val_t{4096}));
  AlignedBlock() { std::memset(data, 0x5a, kBytes); }
  ~AlignedBlock() { ::operator delete (data, std::align_val_t{4096}); }
  AlignedBlock(const AlignedBlock&) = delete;
  AlignedBlock& operator=(const AlignedBlock&) = delete;
};

}  // namespace

double measure_read_bandwidth(ThreadPool& pool, std::span<const std::byte> bytes, size_t streams) {
  const size_t parts = 8 * pool.thread_count();
  const size_t step = bytes.size() / parts;
  const auto read = streams == 1 ? read_all<1> : read_all<4>;
  const auto start = std::chrono::steady_clock::now();
  pool.run(parts, [&](size_t part, size_t /*worker*/) { read(bytes.subspan(part * step, step)); });
  return static_cast<double>(parts * step) / seconds_since(start);
}

bool has_multiplier(Multiplier multiplier) {
  switch (multiplier) {
    case Multiplier::kScalar: return true;
    case Multiplier::kAvx2: return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    case Multiplier::kAvx512: return static_cast<bool>(__builtin_cpu_supports("avx512f"));
    case Multiplier::kAvx512Bf16: return static_cast<bool>(__builtin_cpu_supports("avx512bf16"));
    case Multiplier::kAmxBf16: return kernels::amx_status() == kernels::AmxStatus::kReady;
  }
  return false;
}

double measure_peak_flops(ThreadPool& pool, Multiplier multiplier) {
  const Load load = load_of(multiplier);
  const auto start = std::chrono::steady_clock::now();
  pool.run(pool.thread_count(), [&](size_t /*part*/, size_t /*worker*/) { load.run(); });
  return load.operations * static_cast<double>(pool.thread_count()) / seconds_since(start);
}

std::optional<double> measure_disk_read(const std::filesystem::path& folder) {
  constexpr size_t kBlocks = 64;
  const AlignedBlock block;
  const std::filesystem::path path = folder / "disk";
  AtomicFile file(path);
  for (size_t i = 0; i < kBlocks; ++i)
    file.write({block.data, AlignedBlock::kBytes});
  file.commit();
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC);
  if (descriptor < 0) return std::nullopt;
  size_t total = 0;
  const auto start = std::chrono::steady_clock::now();
  for (size_t i = 0; i < kBlocks; ++i) {
    const ssize_t count = ::read(descriptor, block.data, AlignedBlock::kBytes);
    total += count > 0 ? static_cast<size_t>(count) : 0;
  }
  const double seconds = seconds_since(start);
  ::close(descriptor);
  if (total != kBlocks * AlignedBlock::kBytes) return std::nullopt;
  return static_cast<double>(total) / seconds;
}

}  // namespace tidepool::bench
