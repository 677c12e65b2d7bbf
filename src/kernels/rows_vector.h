#pragma once

#include "kernels/kernel_table.h"
#include "kernels/math_vector.h"

// The kernels that walk one row of values, for any Vec. Where the reference uses separate multiplications and additions
// so do these, so rope, add, hc_collapse, hc_expand, quantise_fp8 and round_bf16 give the reference's bits.

namespace tidepool::kernels {
namespace {

inline constexpr size_t kLanes = Vec::kLanes;

inline void rms_norm_rows(const float* x, const Bf16* weight, size_t count, float eps, float* y) {
  // Four sums hide the latency of the addition.
  Vec::F sum[4] = {Vec::zero(), Vec::zero(), Vec::zero(), Vec::zero()};
  for (size_t i = 0; i < count; i += 4 * kLanes) {
    for (size_t k = 0; k < 4; ++k) {
      const size_t begin = smaller(i + k * kLanes, count);
      const Vec::F value = Vec::load(x + begin, count - begin);
      sum[k] = Vec::fma(value, value, sum[k]);
    }
  }
  const float squares = Vec::sum(Vec::add(Vec::add(sum[0], sum[1]), Vec::add(sum[2], sum[3])));
  const float mean = squares / static_cast<float>(count);
  const Vec::F factor = Vec::all(1.0F / _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(mean + eps))));
  for (size_t i = 0; i < count; i += kLanes) {
    const size_t rest = count - i;
    Vec::F value = Vec::mul(Vec::load(x + i, rest), factor);
    if (weight != nullptr) value = Vec::mul(value, Vec::load_bf16(weight + i, rest));
    Vec::store(y + i, value, rest);
  }
}

/// value on the E4M3 grid, for magnitudes up to 448 and a little more; the sign of zero is kept.
TIDEPOOL_INLINE Vec::F e4m3_rounded(Vec::F value) {
  const Vec::F sign = Vec::from_bits(0x80000000U);
  const Vec::F magnitude = Vec::bit_and(value, Vec::from_bits(0x7fffffffU));
  const Vec::F normal = Vec::round_bits<20>(magnitude);
  // Below 2^-6 the grid is 2^-9, the unit of the last place of 1.5 * 2^14.
  const Vec::F shift = Vec::all(24576.0F);
  const Vec::F subnormal = Vec::sub(Vec::add(magnitude, shift), shift);
  const Vec::F rounded = Vec::where_at_least(magnitude, Vec::all(0.015625F), normal, subnormal);
  return Vec::bit_or(rounded, Vec::bit_and(value, sign));
}

/// 2^ceil(log2(amax / 448)) for a positive finite amax of at least 1e-4.
inline float fp8_scale(float amax) {
  const float ratio = amax / 448.0F;
  uint32_t bits = 0;
  __builtin_memcpy(&bits, &ratio, sizeof(bits));
  return e8m0_value(static_cast<uint8_t>((bits >> 23) + ((bits & 0x7fffffU) != 0 ? 1 : 0)));
}

inline void quantise_fp8_rows(float* x, size_t count) {
  constexpr size_t kBlock = 32;
  constexpr size_t kVectors = kBlock / kLanes;
  for (size_t begin = 0; begin < count; begin += kBlock) {
    Vec::F value[kVectors];
    Vec::F largest = Vec::all(1e-4F);
    int32_t largest_bits = 0;
    for (size_t v = 0; v < kVectors; ++v) {
      value[v] = Vec::load(x + begin + v * kLanes);
      const Vec::F magnitude = Vec::bit_and(value[v], Vec::from_bits(0x7fffffffU));
      const int32_t bits = Vec::largest_bits(magnitude);
      largest_bits = bits > largest_bits ? bits : largest_bits;
      largest = Vec::max(magnitude, largest);
    }
    const bool is_finite = largest_bits < 0x7f800000;
    const float scale = is_finite ? fp8_scale(Vec::largest(largest)) : 1.0F;
    const Vec::F inverse = Vec::all(1.0F / scale);  // a power of two: exact
    for (size_t v = 0; v < kVectors; ++v) {
      const Vec::F rounded = Vec::mul(e4m3_rounded(Vec::mul(value[v], inverse)), Vec::all(scale));
      Vec::store(x + begin + v * kLanes, is_finite ? rounded : Vec::from_bits(0x7fc00000U));
    }
  }
}

inline void round_bf16_rows(float* x, size_t count) {
  for (size_t i = 0; i < count; i += kLanes) {
    Vec::store(x + i, bf16_rounded(Vec::load(x + i, count - i)), count - i);
  }
}

inline void rope_rows(float* x, const float* cos, const float* sin, size_t pairs, float sin_sign) {
  for (size_t i = 0; i < pairs; i += kLanes / 2) {
    const size_t rest = pairs - i;
    const Vec::F value = Vec::load(x + 2 * i, 2 * rest);
    const Vec::F s = Vec::mul(Vec::load_twice(sin + i, rest), Vec::all(sin_sign));
    const Vec::F straight = Vec::mul(value, Vec::load_twice(cos + i, rest));
    const Vec::F crossed = Vec::mul(Vec::swap_pairs(value), s);
    Vec::store(x + 2 * i, Vec::add(straight, Vec::bit_xor(crossed, Vec::even_signs())), 2 * rest);
  }
}

inline void swiglu_rows(const float* gate, const float* up, size_t count, float limit, float weight, float* y) {
  // max and min give their second operand where one is NaN.
  const Vec::F bound = Vec::all(limit > 0 ? limit : __builtin_inff());
  const Vec::F lower = Vec::all(limit > 0 ? -limit : -__builtin_inff());
  for (size_t i = 0; i < count; i += kLanes) {
    const size_t rest = count - i;
    const Vec::F g = Vec::min(bound, Vec::load(gate + i, rest));
    const Vec::F u = Vec::max(lower, Vec::min(bound, Vec::load(up + i, rest)));
    const Vec::F e = exponential(Vec::sub(Vec::zero(), g));
    const Vec::F silu = Vec::div(g, Vec::add(Vec::all(1.0F), e));
    Vec::store(y + i, Vec::mul(Vec::mul(silu, u), Vec::all(weight)), rest);
  }
}

/// Whole vectors first; what is left over goes through a copy filled up with the largest value, whose terms are not
/// counted.
inline float softmax_terms_row(float* x, size_t count, float scale) {
  if (count == 0) return 0;
  const size_t whole = count - count % kLanes;
  float tail[kLanes];
  // Of a NaN and another value max gives the second: a NaN is no maximum and shows in its own term.
  Vec::F most = Vec::all(-__builtin_inff());
  for (size_t i = 0; i < whole; i += kLanes)
    most = Vec::max(Vec::load(x + i), most);
  float largest = Vec::largest(most);
  for (size_t i = whole; i < count; ++i)
    largest = x[i] > largest ? x[i] : largest;
  const Vec::F subtracted = Vec::all(largest);
  const Vec::F factor = Vec::all(scale);
  const auto term = [&](Vec::F value) { return exponential(Vec::mul(Vec::sub(value, subtracted), factor)); };
  Vec::F sums = Vec::zero();
  for (size_t i = 0; i < whole; i += kLanes) {
    const Vec::F value = term(Vec::load(x + i));
    Vec::store(x + i, value);
    sums = Vec::add(sums, value);
  }
  float sum = Vec::sum(sums);
  for (size_t i = 0; i < kLanes; ++i)
    tail[i] = whole + i < count ? x[whole + i] : largest;
  Vec::store(tail, term(Vec::load(tail)));
  for (size_t i = whole; i < count; ++i) {
    x[i] = tail[i - whole];
    sum += x[i];
  }
  return sum;
}

/// A bit for each of `count` values, up to kAboveBlock: whether it is above.
TIDEPOOL_INLINE uint64_t above_bits(const float* x, size_t count, Vec::F above) {
  uint64_t bits = 0;
  for (size_t i = 0; i < kAboveBlock && i < count; i += kLanes)
    bits |= uint64_t{Vec::greater(Vec::load(x + i, count - i), above)} << i;
  // Lanes that do not exist are 0, which may be above.
  return count < kAboveBlock ? bits & ((uint64_t{1} << count) - 1) : bits;
}

/// Almost all blocks have none above, so a whole one is compared before a branch asks.
inline Above collect_above_rows(const AboveArgs& args) {
  // Across pages, where the processor's own prefetch stops.
  constexpr size_t kAhead = 1024;
  const Vec::F above = Vec::all(args.above);
  Above found{.count = 0, .next = args.begin};
  while (found.next < args.end && found.count + kAboveBlock <= args.room) {
    const float* block = args.x + found.next;
    for (size_t i = 0; i < kAboveBlock; i += 16)
      _mm_prefetch(reinterpret_cast<const char*>(block + kAhead + i), _MM_HINT_T0);
    const size_t count = smaller(kAboveBlock, args.end - found.next);
    uint64_t bits = count == kAboveBlock ? above_bits(block, kAboveBlock, above) : above_bits(block, count, above);
    for (; bits != 0; bits &= bits - 1) {
      const auto i = static_cast<size_t>(__builtin_ctzll(bits));
      args.values[found.count] = block[i];
      args.places[found.count++] = static_cast<uint32_t>(found.next + i);
    }
    found.next += count;
  }
  return found;
}

inline void add_rows(float* sum, const float* x, size_t count) {
  for (size_t i = 0; i < count; i += kLanes)
    Vec::store(sum + i, Vec::add(Vec::load(sum + i, count - i), Vec::load(x + i, count - i)), count - i);
}

inline void hc_collapse_rows(const float* stream, const float* pre, size_t streams, size_t width, float* y) {
  for (size_t i = 0; i < width; i += kLanes) {
    Vec::F sum = Vec::zero();
    for (size_t j = 0; j < streams; ++j) {
      sum = Vec::add(sum, Vec::mul(Vec::all(pre[j]), Vec::load(stream + j * width + i, width - i)));
    }
    Vec::store(y + i, sum, width - i);
  }
}

inline void hc_expand_rows(float* stream, const float* y, const float* post, const float* comb, size_t streams,
                           size_t width) {
  for (size_t i = 0; i < width; i += kLanes) {
    const size_t rest = width - i;
    const Vec::F added = Vec::load(y + i, rest);
    Vec::F old[kHcStreamsMax];
    for (size_t j = 0; j < streams; ++j)
      old[j] = Vec::load(stream + j * width + i, rest);
    for (size_t k = 0; k < streams; ++k) {
      Vec::F sum = Vec::mul(Vec::all(post[k]), added);
      for (size_t j = 0; j < streams; ++j)
        sum = Vec::add(sum, Vec::mul(Vec::all(comb[j * streams + k]), old[j]));
      Vec::store(stream + k * width + i, sum, rest);
    }
  }
}

}  // namespace
}  // namespace tidepool::kernels
