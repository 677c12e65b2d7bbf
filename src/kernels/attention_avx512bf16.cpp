#include "kernels/decode_avx512bf16.h"
#include "kernels/kernel_table_internal.h"
// After the Vec it is written in.
#include "kernels/attention_vector.h"

// Sparse attention in pairs of bfloat16. Cached rows are exact in it, and so are queries and rounded probabilities
// under the official numerics: products are the same as in binary32, and only the order of their sums differs.
//
// Each row is decoded once, into two places: as it is, for the scores (sums over columns, 32 at a time), and in pairs
// of rows, for the values (sums over rows, two at a time). Columns are kept in the order that makes the second one
// cheap: of each 32, the quads 0 4 1 5 2 6 3 7, so that interleaving the words of two rows gives columns 0 to 15 and 16
// to 31.

namespace tidepool::kernels {
namespace {

/// bfloat16 in a vector, and columns that FP8 is decoded by.
inline constexpr size_t kWords = 32;
inline constexpr size_t kColumnStep = 64;

/// Every E2M1 value times every E4M3 scale, as bfloat16: at most six significant bits, none subnormal.
struct ScaledFp4 {
  alignas(32) uint16_t value[256][16];
};
constexpr ScaledFp4 scaled_fp4() {
  constexpr float kMagnitudes[8] = {0, 0.5F, 1, 1.5F, 2, 3, 4, 6};
  constexpr FloatTable kScales = e4m3_values();
  ScaledFp4 table{};
  for (size_t code = 0; code < 256; ++code) {
    for (size_t i = 0; i < 16; ++i) {
      const bool is_nan = (code & 0x7fU) == 0x7fU;
      const float value = is_nan ? 0.0F : (i < 8 ? kMagnitudes[i] : -kMagnitudes[i - 8]) * kScales.value[code];
      table.value[code][i] =
          is_nan ? uint16_t{0x7fc0} : static_cast<uint16_t>(__builtin_bit_cast(uint32_t, value) >> 16U);
    }
  }
  return table;
}
constexpr ScaledFp4 kScaledFp4 = scaled_fp4();

/// A whole vector of columns 0 to 31, with its quads in the order above.
TIDEPOOL_INLINE __m512i dealt_out(__m512i ascending) {
  return _mm512_permutexvar_epi64(_mm512_set_epi64(7, 3, 6, 2, 5, 1, 4, 0), ascending);
}

/// 32 E2M1 codes in the lowest four bits of ascending words. (Of the next bit some are set.)
TIDEPOOL_INLINE __m512i load_nibbles(const std::byte* codes) {
  const __m512i byte = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)));
  return _mm512_or_si512(byte, _mm512_slli_epi32(byte, 12));
}

TIDEPOOL_INLINE uint8_t scale_at(const std::byte* scales, size_t index) {
  return static_cast<uint8_t>(scales[index]);
}

/// Columns [column, column + 64) of a row.
template <RowFormat kFormat>
TIDEPOOL_INLINE void decode_step(const std::byte* row, size_t width, size_t column, __m512i* out) {
  if constexpr (kFormat == RowFormat::kFp8Block32) {
    const std::byte* scales = row + width + column / 32;
    const auto more = [](uint8_t scale) { return static_cast<int16_t>((scale - kFp8ScaleMin) << 7); };
    const __m256i low = _mm256_set1_epi16(more(scale_at(scales, 0)));
    const __m256i high = _mm256_set1_epi16(more(scale_at(scales, 1)));
    __m512i half[2];
    decode_fp8_half(row + column, _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1), half);
    out[0] = _mm512_permutex2var_epi64(half[0], _mm512_set_epi64(11, 9, 10, 8, 3, 1, 2, 0), half[1]);
    out[1] = _mm512_permutex2var_epi64(half[0], _mm512_set_epi64(15, 13, 14, 12, 7, 5, 6, 4), half[1]);
  } else if constexpr (kFormat == RowFormat::kFp4Block32) {
    for (size_t i = 0; i < 2; ++i) {
      const uint8_t scale = scale_at(row + width / 2, column / 32 + i);
      const __m512i less = _mm512_set1_epi16(static_cast<int16_t>((kFp4ScaleMax - scale) << 7));
      const __m512i value =
          _mm512_permutexvar_epi16(load_nibbles(row + column / 2 + 16 * i), _mm512_load_si512(kFp4Values.value));
      out[i] = dealt_out(_mm512_subs_epu16(value, less));
    }
  } else {
    static_assert(kFormat == RowFormat::kFp4Block16);
    const __m512i upper = _mm512_inserti64x4(_mm512_setzero_si512(), _mm256_set1_epi16(16), 1);
    for (size_t i = 0; i < 2; ++i) {
      const std::byte* scales = row + width / 2 + column / 16 + 2 * i;
      const auto values = [&](size_t s) {
        return _mm256_load_si256(reinterpret_cast<const __m256i*>(kScaledFp4.value[scale_at(scales, s)]));
      };
      const __m512i table = _mm512_inserti64x4(_mm512_castsi256_si512(values(0)), values(1), 1);
      // 0xea: (nibbles & 15) | upper.
      const __m512i index =
          _mm512_ternarylogic_epi32(load_nibbles(row + column / 2 + 16 * i), _mm512_set1_epi16(15), upper, 0xea);
      out[i] = dealt_out(_mm512_permutexvar_epi16(index, table));
    }
  }
}

/// Where a block's rows and the queries lie in the scratch of a call.
struct Bf16State {
  const AttentionState& shared;
  size_t row_vectors;   ///< from one row to the next
  size_t pair_vectors;  ///< from one pair to the next, one more than it has: a power of two would share few sets
  __m512i* rows;
  __m512i* pairs;
  __m512i* q;

  explicit Bf16State(const AttentionState& state)
      : shared(state),
        row_vectors(state.args.width / kWords),
        pair_vectors(2 * (state.args.width / kWords) + 1),
        rows(aligned(state.rows)),
        pairs(rows + kAttentionBlock * row_vectors),
        q(aligned(state.rescale + state.args.heads)) {}

  [[nodiscard]] size_t vectors() const { return shared.args.width / kWords; }

 private:
  static __m512i* aligned(float* from) {
    return reinterpret_cast<__m512i*>((reinterpret_cast<uintptr_t>(from) + 63) / 64 * 64);
  }
};

/// Rows 2 * pair and 2 * pair + 1 of the block; a missing second one is zeros.
template <RowFormat kFirst, RowFormat kSecond>
void decode_pair_as(const Bf16State& state, const std::byte* first, const std::byte* second, size_t pair) {
  const size_t width = state.shared.args.width;
  __m512i* rows = state.rows + 2 * pair * state.row_vectors;
  __m512i* pairs = state.pairs + pair * state.pair_vectors;
  for (size_t column = 0; column < width; column += kColumnStep) {
    __m512i a[2];
    __m512i b[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()};
    decode_step<kFirst>(first, width, column, a);
    if (second != nullptr) decode_step<kSecond>(second, width, column, b);
    for (size_t i = 0; i < 2; ++i) {
      const size_t v = column / kWords + i;
      _mm512_store_si512(rows + v, a[i]);
      _mm512_store_si512(rows + state.row_vectors + v, b[i]);
      _mm512_store_si512(pairs + 2 * v, _mm512_unpacklo_epi16(a[i], b[i]));
      _mm512_store_si512(pairs + 2 * v + 1, _mm512_unpackhi_epi16(a[i], b[i]));
    }
  }
}

template <RowFormat kFirst>
void decode_pair_from(const Bf16State& state, const std::byte* first, ListedRow second, size_t pair) {
  switch (second.format) {
    case RowFormat::kFp8Block32: return decode_pair_as<kFirst, RowFormat::kFp8Block32>(state, first, second.data, pair);
    case RowFormat::kFp4Block16: return decode_pair_as<kFirst, RowFormat::kFp4Block16>(state, first, second.data, pair);
    default: return decode_pair_as<kFirst, RowFormat::kFp4Block32>(state, first, second.data, pair);
  }
}

void decode_pair(const Bf16State& state, ListedRow first, ListedRow second, size_t pair) {
  switch (first.format) {
    case RowFormat::kFp8Block32: return decode_pair_from<RowFormat::kFp8Block32>(state, first.data, second, pair);
    case RowFormat::kFp4Block16: return decode_pair_from<RowFormat::kFp4Block16>(state, first.data, second, pair);
    default: return decode_pair_from<RowFormat::kFp4Block32>(state, first.data, second, pair);
  }
}

TIDEPOOL_INLINE Vec::F add_products(Vec::F sum, __m512i a, __m512i b) {
  return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
}

/// p[h, j] = scale * q[h] . row[j] for one tile of heads and rows. Those past the end repeat the last one.
template <size_t... kIndex>
void score_pairs_tile(const Bf16State& state, size_t first_head, size_t first_row, size_t count,
                      std::index_sequence<kIndex...> /*sums*/) {
  const AttentionArgs& args = state.shared.args;
  const __m512i* head[kTileHeads];
  const __m512i* row[kTileRows];
  for (size_t h = 0; h < kTileHeads; ++h)
    head[h] = state.q + smaller(first_head + h, args.heads - 1) * state.vectors();
  for (size_t j = 0; j < kTileRows; ++j)
    row[j] = state.rows + smaller(first_row + j, count - 1) * state.row_vectors;
  Vec::F sum[kTileHeads * kTileRows] = {(static_cast<void>(kIndex), Vec::zero())...};
  for (size_t v = 0; v < state.vectors(); ++v) {
    const __m512i k[kTileRows] = {row[0][v], row[1][v], row[2][v], row[3][v]};
    ((sum[kIndex] = add_products(sum[kIndex], head[kIndex / kTileRows][v], k[kIndex % kTileRows])), ...);
  }
  float scores[kLanes];
  Vec::store(scores, Vec::mul(Vec::sums(sum), Vec::all(args.scale)));
  for (size_t h = 0; h < kTileHeads && first_head + h < args.heads; ++h) {
    __builtin_memcpy(state.shared.p + (first_head + h) * kAttentionBlock + first_row, scores + h * kTileRows,
                     kTileRows * sizeof(float));
  }
}

/// Vectors of columns that value_pairs_tile does together.
inline constexpr size_t kValueVectors = 4;

/// out[h, i] = out[h, i] * rescale[h] + sum_j p[h, j] row[j, i] for one tile of heads and 64 columns.
template <size_t... kIndex>
void value_pairs_tile(const Bf16State& state, size_t first_head, size_t first_vector, size_t pairs,
                      std::index_sequence<kIndex...> /*sums*/) {
  const AttentionArgs& args = state.shared.args;
  float* out[kTileHeads];
  const uint32_t* p[kTileHeads];
  Vec::F rescale[kTileHeads];
  for (size_t h = 0; h < kTileHeads; ++h) {
    const size_t head = smaller(first_head + h, args.heads - 1);
    out[h] = args.out + head * args.width + first_vector * kLanes;
    p[h] = reinterpret_cast<const uint32_t*>(state.shared.p + head * kAttentionBlock);
    rescale[h] = Vec::all(state.shared.rescale[head]);
  }
  Vec::F sum[kTileHeads * kValueVectors] = {Vec::mul(
      Vec::load(out[kIndex / kValueVectors] + kIndex % kValueVectors * kLanes), rescale[kIndex / kValueVectors])...};
  const __m512i* value = state.pairs + first_vector;
  for (size_t j = 0; j < pairs; ++j, value += state.pair_vectors) {
    const __m512i v[kValueVectors] = {value[0], value[1], value[2], value[3]};
    const __m512i weight[kTileHeads] = {
        _mm512_set1_epi32(static_cast<int>(p[0][j])), _mm512_set1_epi32(static_cast<int>(p[1][j])),
        _mm512_set1_epi32(static_cast<int>(p[2][j])), _mm512_set1_epi32(static_cast<int>(p[3][j]))};
    ((sum[kIndex] = add_products(sum[kIndex], weight[kIndex / kValueVectors], v[kIndex % kValueVectors])), ...);
  }
  (Vec::store(out[kIndex / kValueVectors] + kIndex % kValueVectors * kLanes, sum[kIndex]), ...);
}
static_assert(kTileHeads == 4 && kTileRows == 4 && kValueVectors == 4);

/// The probabilities of a head, which are exact in it, as bfloat16 in the first half of their memory.
void narrow_probabilities(float* p) {
  static_assert(kAttentionBlock == 2 * kWords);
  const __m512i first = narrowed(p);
  const __m512i second = narrowed(p + kWords);
  _mm512_storeu_si512(p, first);
  _mm512_storeu_si512(p + kLanes, second);
}

/// Rows that all heads meet while they are in the first cache: 16 KiB of it at the released width.
inline constexpr size_t kScoreRowPairs = 8;

void attend_pairs(const Bf16State& state, size_t first, size_t count) {
  const AttentionArgs& args = state.shared.args;
  constexpr auto kIndices = std::make_index_sequence<kTileHeads * kTileRows>();
  const size_t pairs = (count + 1) / 2;
  for (size_t pair = 0; pair < pairs; ++pair) {
    const ListedRow row = listed_row(args, first + 2 * pair);
    const bool has_second = 2 * pair + 1 < count;
    decode_pair(state, row, has_second ? listed_row(args, first + 2 * pair + 1) : ListedRow{row.format, nullptr}, pair);
  }
  for (size_t first_row = 0; first_row < count; first_row += 2 * kScoreRowPairs) {
    const size_t end = smaller(first_row + 2 * kScoreRowPairs, count);
    for (size_t j = first_row; j < end; ++j)
      prefetch_listed_row(args, first + kAttentionBlock + j);
    for (size_t h = 0; h < args.heads; h += kTileHeads) {
      for (size_t j = first_row; j < end; j += kTileRows)
        score_pairs_tile(state, h, j, count, kIndices);
    }
  }
  for (size_t h = 0; h < args.heads; h += kLanes)
    normalise_heads(state.shared, h, smaller(kLanes, args.heads - h), count);
  for (size_t h = 0; h < args.heads; ++h)
    narrow_probabilities(state.shared.p + h * kAttentionBlock);
  for (size_t v = 0; v < 2 * state.vectors(); v += kValueVectors) {
    for (size_t h = 0; h < args.heads; h += kTileHeads)
      value_pairs_tile(state, h, v, pairs, kIndices);
  }
}

/// Whether all rows are exact in bfloat16 with normal exponents.
bool are_exact(const RowList& list, size_t width) {
  switch (list.format) {
    case RowFormat::kFp4Block16: return true;
    case RowFormat::kFloat32: return list.count == 0;
    case RowFormat::kFp8Block32:
    case RowFormat::kFp4Block32: break;
  }
  const bool is_fp8 = list.format == RowFormat::kFp8Block32;
  for (size_t j = 0; j < list.count; ++j) {
    const auto* scales = reinterpret_cast<const uint8_t*>(list.rows[j] + (is_fp8 ? width : width / 2));
    if (!are_within(scales, width / 32, is_fp8 ? kFp8ScaleMin : kFp4ScaleMin, is_fp8 ? kFp8ScaleMax : kFp4ScaleMax))
      return false;
  }
  return true;
}

/// Whether all values are exact in bfloat16; `count` is a multiple of 16.
bool are_exact(const float* values, size_t count) {
  __m512i lower = _mm512_setzero_si512();
  for (size_t i = 0; i < count; i += kLanes)
    lower = _mm512_or_si512(lower, _mm512_loadu_si512(values + i));
  return _mm512_test_epi32_mask(lower, _mm512_set1_epi32(0xffff)) == 0;
}

}  // namespace

namespace avx512bf16 {

/// What does not suit bfloat16 (other numerics, other widths, scales near the ends of E8M0) goes to the version that
/// multiplies in binary32.
void sparse_attention(const AttentionArgs& args) noexcept {
  for (size_t j = 0; j < kAttentionBlock; ++j)
    prefetch_listed_row(args, j);
  const bool is_exact = args.round_probabilities && args.width % kColumnStep == 0 &&
                        are_exact(args.q, args.heads * args.width) && are_exact(args.window, args.width) &&
                        are_exact(args.global, args.width);
  if (!is_exact) return avx512::sparse_attention(args);
  attend_in_blocks(args, [&](const AttentionState& shared, size_t first, size_t count) {
    const Bf16State state(shared);
    for (size_t v = 0; first == 0 && v < args.heads * state.vectors(); ++v)
      _mm512_store_si512(state.q + v, dealt_out(narrowed(args.q + v * kWords)));
    attend_pairs(state, first, count);
  });
}

}  // namespace avx512bf16
}  // namespace tidepool::kernels
