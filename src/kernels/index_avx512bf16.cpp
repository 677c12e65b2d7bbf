#include "kernels/kernel_table_internal.h"
#include "kernels/vec_avx512.h"
// After the Vec it is written in.
#include "kernels/attention_vector.h"

// Index scores in integers (VPDPBUSD, which every processor with VDPBF16PS has). Doubled, the values of E2M1 are the
// integers -12 to 12, and queries on that grid are such integers too, so the product of a query with 32 columns of a
// key, which share a scale on both sides, is exact: its sum stays below 2^18. Only the sum over these products rounds.

namespace tidepool::kernels {
namespace {

/// Columns of one scale, in dwords of four columns.
inline constexpr size_t kBlock = 32;
inline constexpr size_t kBlockDwords = kBlock / 4;
/// Keys are stored with this added to twice their value, because one side of VPDPBUSD is unsigned.
inline constexpr int kKeyOffset = 12;
/// Heads that are worked on together; with two vectors of keys that is sixteen independent sums.
inline constexpr size_t kHeadsAtOnce = 8;
/// The largest magnitude of a query's integers: 7 bits, so that any mix of values on the FP4 grid fits.
inline constexpr float kQueryMax = 127;

/// The queries as integers. Each dword has the columns of one dword of codes that are even, or odd, as keys have them.
/// Heads lie side by side, filled up to a multiple of kHeadsAtOnce.
struct IntegerQueries {
  size_t heads;
  size_t blocks;
  int32_t* columns;  ///< [blocks, kBlockDwords, heads]
  int32_t* start;    ///< [blocks, heads], what takes kKeyOffset off again
  float* scale;      ///< [blocks, heads], halved, for the doubled keys

  [[nodiscard]] static size_t padded(size_t heads) { return (heads + kHeadsAtOnce - 1) / kHeadsAtOnce * kHeadsAtOnce; }
  [[nodiscard]] size_t floats() const { return blocks * heads * (kBlockDwords + 2); }
};

/// 32 values of one head, of block `b`. False if they are not integers of 7 bits times a power of two.
bool convert_block(const float* x, size_t head, size_t b, const IntegerQueries& q) {
  float largest = 0;
  for (size_t i = 0; i < kBlock; ++i)
    largest = __builtin_fabsf(x[i]) > largest ? __builtin_fabsf(x[i]) : largest;
  uint32_t bits = 0;
  __builtin_memcpy(&bits, &largest, sizeof bits);
  const auto exponent = static_cast<int>(bits >> 23U);
  // Powers of two that are normal, as is their inverse.
  if (largest != 0 && (exponent < 40 || exponent > 200)) return false;
  const int shift = largest == 0 ? 0 : exponent - 127 - 6;
  const float inverse = __builtin_bit_cast(float, static_cast<uint32_t>(127 - shift) << 23U);
  int8_t integers[kBlock];
  int sum = 0;
  for (size_t i = 0; i < kBlock; ++i) {
    const float value = x[i] * inverse;
    if (!(value >= -kQueryMax && value <= kQueryMax)) return false;
    integers[i] = static_cast<int8_t>(value);
    if (static_cast<float>(integers[i]) != value) return false;
    sum += integers[i];
  }
  for (size_t d = 0; d < kBlockDwords; ++d) {
    int8_t* to = reinterpret_cast<int8_t*>(q.columns + (b * kBlockDwords + d) * q.heads + head);
    for (size_t i = 0; i < 4; ++i)
      to[i] = integers[8 * (d / 2) + 2 * i + d % 2];
  }
  q.start[b * q.heads + head] = -kKeyOffset * sum;
  q.scale[b * q.heads + head] = __builtin_bit_cast(float, static_cast<uint32_t>(127 + shift - 1) << 23U);
  return true;
}

bool convert_queries(const IndexScoreArgs& args, const IntegerQueries& q) {
  __builtin_memset(q.columns, 0, q.floats() * sizeof(float));
  for (size_t h = 0; h < args.heads; ++h) {
    for (size_t b = 0; b < q.blocks; ++b) {
      if (!convert_block(args.q + h * args.width + b * kBlock, h, b, q)) return false;
    }
  }
  return true;
}

/// Sixteen keys of a block: lane l of dword d has the even (d even) or odd codes of dword d / 2 of key l.
TIDEPOOL_INLINE void load_keys(const std::byte* const* key, size_t b, __m512i* out) {
  __m512i four[4];  // quarter j of four[i] is key 4j + i
  for (size_t i = 0; i < 4; ++i) {
    const auto part = [&](size_t j) {
      return _mm_loadu_si128(reinterpret_cast<const __m128i*>(key[4 * j + i] + b * (kBlock / 2)));
    };
    const __m256i low = _mm256_inserti128_si256(_mm256_castsi128_si256(part(0)), part(1), 1);
    const __m256i high = _mm256_inserti128_si256(_mm256_castsi128_si256(part(2)), part(3), 1);
    four[i] = _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
  }
  const __m512i low01 = _mm512_unpacklo_epi32(four[0], four[1]);
  const __m512i high01 = _mm512_unpackhi_epi32(four[0], four[1]);
  const __m512i low23 = _mm512_unpacklo_epi32(four[2], four[3]);
  const __m512i high23 = _mm512_unpackhi_epi32(four[2], four[3]);
  const __m512i codes[4] = {_mm512_unpacklo_epi64(low01, low23), _mm512_unpackhi_epi64(low01, low23),
                            _mm512_unpacklo_epi64(high01, high23), _mm512_unpackhi_epi64(high01, high23)};
  // Twice the value of each code, and kKeyOffset.
  const __m512i values =
      _mm512_broadcast_i32x4(_mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
  const __m512i lower = _mm512_set1_epi8(15);
  for (size_t i = 0; i < 4; ++i) {
    out[2 * i] = _mm512_shuffle_epi8(values, _mm512_and_si512(codes[i], lower));
    out[2 * i + 1] = _mm512_shuffle_epi8(values, _mm512_and_si512(_mm512_srli_epi32(codes[i], 4), lower));
  }
}

/// The scales of block `b` of sixteen keys.
TIDEPOOL_INLINE Vec::F load_scales(const std::byte* const* key, size_t width, size_t b) {
  alignas(16) uint8_t code[kLanes];
  for (size_t l = 0; l < kLanes; ++l)
    code[l] = static_cast<uint8_t>(key[l][width / 2 + b]);
  const __m512i codes = _mm512_cvtepu8_epi32(_mm_load_si128(reinterpret_cast<const __m128i*>(code)));
  const __m512i powers = _mm512_slli_epi32(codes, 23);
  // Code 0 is the subnormal 2^-127, 255 is NaN.
  const __mmask16 is_nan = _mm512_cmpeq_epi32_mask(codes, _mm512_set1_epi32(255));
  const __m512i finite =
      _mm512_mask_mov_epi32(powers, _mm512_testn_epi32_mask(codes, codes), _mm512_set1_epi32(0x00400000));
  return _mm512_castsi512_ps(_mm512_mask_mov_epi32(finite, is_nan, _mm512_set1_epi32(0x7fc00000)));
}

/// 32 keys: integers and scales of all blocks.
struct IntegerKeys {
  __m512i* columns;  ///< [blocks, kBlockDwords, kKeyVectors]
  Vec::F* scales;    ///< [blocks, kKeyVectors]
};

void convert_keys(KeyCursor& cursor, size_t width, const IntegerKeys& keys) {
  for (size_t v = 0; v < kKeyVectors; ++v) {
    const std::byte* key[kLanes];
    for (const std::byte*& one : key)
      one = cursor.next();
    for (size_t b = 0; b < width / kBlock; ++b) {
      __m512i columns[kBlockDwords];
      load_keys(key, b, columns);
      for (size_t d = 0; d < kBlockDwords; ++d)
        _mm512_store_si512(keys.columns + (b * kBlockDwords + d) * kKeyVectors + v, columns[d]);
      keys.scales[b * kKeyVectors + v] = load_scales(key, width, b);
    }
  }
}

/// dot[h, v] += the products of one block.
template <size_t... kHead>
TIDEPOOL_INLINE void add_block(const IntegerQueries& q, const IntegerKeys& keys, size_t first_head, size_t b,
                               Vec::F (&dot)[kHeadsAtOnce][kKeyVectors], std::index_sequence<kHead...> /*heads*/) {
  const int32_t* start = q.start + b * q.heads + first_head;
  __m512i first[] = {_mm512_set1_epi32(start[kHead])...};
  __m512i second[] = {_mm512_set1_epi32(start[kHead])...};
  for (size_t d = 0; d < kBlockDwords; ++d) {
    const __m512i* columns = keys.columns + (b * kBlockDwords + d) * kKeyVectors;
    const __m512i key0 = _mm512_load_si512(columns);
    const __m512i key1 = _mm512_load_si512(columns + 1);
    const int32_t* from = q.columns + (b * kBlockDwords + d) * q.heads + first_head;
    const __m512i query[] = {_mm512_set1_epi32(from[kHead])...};
    ((first[kHead] = _mm512_dpbusd_epi32(first[kHead], key0, query[kHead])), ...);
    ((second[kHead] = _mm512_dpbusd_epi32(second[kHead], key1, query[kHead])), ...);
  }
  const float* scale = q.scale + b * q.heads + first_head;
  const Vec::F scale0 = keys.scales[b * kKeyVectors];
  const Vec::F scale1 = keys.scales[b * kKeyVectors + 1];
  ((dot[kHead][0] = Vec::fma(Vec::mul(_mm512_cvtepi32_ps(first[kHead]), Vec::all(scale[kHead])), scale0, dot[kHead][0]),
    dot[kHead][1] =
        Vec::fma(Vec::mul(_mm512_cvtepi32_ps(second[kHead]), Vec::all(scale[kHead])), scale1, dot[kHead][1])),
   ...);
}

/// Nearest bfloat16, ties to even, NaN stays one; subnormal values become zero, which no sum of these notices.
TIDEPOOL_INLINE Vec::F rounded(Vec::F a) {
  const auto narrow = reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(a));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(narrow), 16));
}

/// add_head, with that rounding.
TIDEPOOL_INLINE Vec::F add_head_rounded(Vec::F weight, Vec::F dot, Vec::F score) {
  const Vec::F relu = Vec::max(Vec::zero(), dot);  // a NaN stays one
  return Vec::add(score, rounded(Vec::mul(rounded(relu), weight)));
}

void score_keys(const IndexScoreArgs& args, const IntegerQueries& q, const IntegerKeys& keys,
                Vec::F (&score)[kKeyVectors]) {
  for (size_t h = 0; h < args.heads; h += kHeadsAtOnce) {
    Vec::F dot[kHeadsAtOnce][kKeyVectors];
    for (auto& head : dot)
      head[0] = head[1] = Vec::zero();
    for (size_t b = 0; b < q.blocks; ++b)
      add_block(q, keys, h, b, dot, std::make_index_sequence<kHeadsAtOnce>());
    for (size_t i = 0; i < smaller(kHeadsAtOnce, args.heads - h); ++i) {
      const Vec::F weight = Vec::all(args.weights[h + i]);
      for (size_t v = 0; v < kKeyVectors; ++v)
        score[v] =
            args.round ? add_head_rounded(weight, dot[i][v], score[v]) : add_head(false, weight, dot[i][v], score[v]);
    }
  }
}

template <typename T>
T* aligned(T* from) {
  return reinterpret_cast<T*>((reinterpret_cast<uintptr_t>(from) + 63) / 64 * 64);
}

/// False if the queries are no such integers, or too many for the scratch.
bool try_scores_in_integers(const IndexScoreArgs& args) {
  const size_t blocks = args.width / kBlock;
  const size_t heads = IntegerQueries::padded(args.heads);
  // Of the scratch, 32 * width and 64 floats, the keys take a quarter and their scales two vectors a block.
  const size_t key_floats = blocks * (kBlockDwords + 1) * kKeyVectors * kLanes;
  if (args.format != RowFormat::kFp4Block32 || args.width % kBlock != 0) return false;
  if (key_floats + blocks * heads * (kBlockDwords + 2) + kLanes > index_scratch_floats(args.width)) return false;
  float* scratch = aligned(args.scratch);
  const IntegerKeys keys = {reinterpret_cast<__m512i*>(scratch),
                            reinterpret_cast<Vec::F*>(scratch + blocks * kBlockDwords * kKeyVectors * kLanes)};
  IntegerQueries q = {heads, blocks, reinterpret_cast<int32_t*>(scratch + key_floats), nullptr, nullptr};
  q.start = q.columns + blocks * kBlockDwords * heads;
  q.scale = reinterpret_cast<float*>(q.start + blocks * heads);
  if (!convert_queries(args, q)) return false;
  const size_t count = key_count(args);
  KeyCursor cursor(args);
  for (size_t j = 0; j < count; j += kKeys) {
    convert_keys(cursor, args.width, keys);
    Vec::F score[kKeyVectors] = {Vec::zero(), Vec::zero()};
    score_keys(args, q, keys, score);
    for (size_t v = 0; v < kKeyVectors && j + v * kLanes < count; ++v) {
      const size_t first = j + v * kLanes;
      Vec::store(args.scores + first, args.round ? bf16_rounded(score[v]) : score[v], count - first);
    }
  }
  return true;
}

}  // namespace

namespace avx512bf16 {

void index_scores(const IndexScoreArgs& args) noexcept {
  if (!try_scores_in_integers(args)) avx512::index_scores(args);
}

}  // namespace avx512bf16
}  // namespace tidepool::kernels
