#include "bench/machine_limits.h"

#include <immintrin.h>

#include <algorithm>
#include <chrono>

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

/// Four independent 128-bit loads per cache line: enough for memory, whatever wider loads the processor has.
void read_all(std::span<const std::byte> bytes) {
  __m128i sum = _mm_setzero_si128();
  for (size_t i = 0; i + 64 <= bytes.size(); i += 64) {
    const auto* line = reinterpret_cast<const __m128i*>(bytes.data() + i);
    _mm_prefetch(reinterpret_cast<const char*>(bytes.data() + i + 4096), _MM_HINT_T0);
    const __m128i low = _mm_xor_si128(_mm_loadu_si128(line), _mm_loadu_si128(line + 1));
    const __m128i high = _mm_xor_si128(_mm_loadu_si128(line + 2), _mm_loadu_si128(line + 3));
    sum = _mm_xor_si128(sum, _mm_xor_si128(low, high));
  }
  keep(sum);
}

constexpr size_t kSteps = 2'000'000;
/// Twelve chains: the latency of 4 cycles times two units, and some to spare.
constexpr size_t kChains = 12;

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

}  // namespace

double measure_read_bandwidth(ThreadPool& pool, std::span<const std::byte> bytes) {
  const size_t parts = 8 * pool.thread_count();
  const size_t step = bytes.size() / parts;
  const auto start = std::chrono::steady_clock::now();
  pool.run(parts, [&](size_t part, size_t /*worker*/) { read_all(bytes.subspan(part * step, step)); });
  return static_cast<double>(parts * step) / seconds_since(start);
}

double measure_peak_flops(ThreadPool& pool, std::string_view isa) {
  const size_t lanes = isa == "avx512" ? 16 : isa == "avx2" ? 8 : 1;
  const auto multiply = isa == "avx512" ? multiply_avx512 : isa == "avx2" ? multiply_avx2 : multiply_scalar;
  const auto start = std::chrono::steady_clock::now();
  pool.run(pool.thread_count(), [&](size_t /*part*/, size_t /*worker*/) { multiply(); });
  const auto operations = static_cast<double>(2 * lanes * kChains * kSteps * pool.thread_count());
  return operations / seconds_since(start);
}

}  // namespace tidepool::bench
