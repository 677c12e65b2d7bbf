#include "kernels/decode_avx512bf16.h"
#include "kernels/kernel_table_internal.h"
#include "kernels/turn_avx512bf16.h"
// After the Vec it is written in.
#include "kernels/attention_vector.h"

// Sparse attention in pairs of bfloat16. Cached rows are exact in it, and so are queries and rounded probabilities
// under the official numerics: products are the same as in binary32, and only the order of their sums differs.
//
// Each row is decoded once, into two places: as it is, for the scores (sums over columns, two at a time), and in pairs
// of rows, for the values (sums over rows, two at a time). In scores lanes are heads: queries are turned once a call,
// numbers of a row are broadcast, and neither scores nor the softmax ever add up lanes. In values lanes are columns, in
// the order that interleaving the words of two rows gives; results are put in order when they are complete.

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

/// Of two vectors, those of their quarters that come first or last when they are taken by turns.
TIDEPOOL_INLINE __m512i first_by_turns(__m512i a, __m512i b) {
  return _mm512_permutex2var_epi64(a, _mm512_set_epi64(11, 10, 3, 2, 9, 8, 1, 0), b);
}
TIDEPOOL_INLINE __m512i last_by_turns(__m512i a, __m512i b) {
  return _mm512_permutex2var_epi64(a, _mm512_set_epi64(15, 14, 7, 6, 13, 12, 5, 4), b);
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
    out[0] = first_by_turns(half[0], half[1]);
    out[1] = last_by_turns(half[0], half[1]);
  } else if constexpr (kFormat == RowFormat::kFp4Block32) {
    for (size_t i = 0; i < 2; ++i) {
      const uint8_t scale = scale_at(row + width / 2, column / 32 + i);
      const __m512i less = _mm512_set1_epi16(static_cast<int16_t>((kFp4ScaleMax - scale) << 7));
      const __m512i value =
          _mm512_permutexvar_epi16(load_nibbles(row + column / 2 + 16 * i), _mm512_load_si512(kFp4Values.value));
      out[i] = _mm512_subs_epu16(value, less);
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
      out[i] = _mm512_permutexvar_epi16(index, table);
    }
  }
}

/// Rows that are decoded and scored before the next ones are: 16 KiB of the first cache at the released width.
inline constexpr size_t kChunkRows = 16;
inline constexpr size_t kBlockPairs = kAttentionBlock / 2;

/// The scratch of one call and what it holds. A head has `repeats` lanes: two where one vector holds all heads, each
/// with the sum of every second pair of columns; else one, and these sums are made one after the other. So a score is
/// the same for any number of heads.
struct Bf16State {
  const AttentionArgs& args;
  size_t repeats;
  size_t lane_vectors;  ///< that hold all heads
  size_t row_vectors;   ///< from one row to the next
  size_t pair_vectors;  ///< from one pair to the next, one more than it has: a power of two would share few sets
  __m512i* pairs;       ///< [kBlockPairs, pair_vectors], rows of a block, two by two
  __m512i* rows;        ///< [kChunkRows, row_vectors], a chunk
  __m512i* q;           ///< [lane_vectors, 2 / repeats, width / 4], queries with a head to each lane
  float* scores;        ///< [kAttentionBlock, lanes], those of a block
  float* p;             ///< [kBlockPairs, lanes], probabilities of two rows in bfloat16
  float* max;           ///< [lanes]
  float* sum;           ///< [lanes]
  float* rescale;       ///< [lanes], what this block's new max does to the sums so far
  /// What values add up to until the last block, tile by tile. In the results themselves a tile would be some numbers
  /// of each of four heads, and the processor would take that for a pattern and fetch the next heads ahead, which are
  /// those of another thread: both threads then wait for each other's results (measured: 15 us of 150).
  float* totals;

  explicit Bf16State(const AttentionArgs& call)
      : args(call),
        repeats(call.heads <= kLanes / 2 ? 2 : 1),
        lane_vectors((call.heads + kLanes - 1) / kLanes),
        row_vectors(call.width / kWords),
        pair_vectors(2 * row_vectors + 1),
        pairs(reinterpret_cast<__m512i*>((reinterpret_cast<uintptr_t>(call.scratch) + 63) / 64 * 64)),
        rows(pairs + kBlockPairs * pair_vectors),
        q(rows + kChunkRows * row_vectors),
        scores(reinterpret_cast<float*>(q + lane_vectors * (2 / repeats) * q_vectors())),
        p(scores + kAttentionBlock * lanes()),
        max(p + kBlockPairs * lanes()),
        sum(max + lanes()),
        rescale(sum + lanes()),
        totals(rescale + lanes()) {}

  [[nodiscard]] size_t lanes() const { return lane_vectors * kLanes; }
  /// Vectors of every second pair of columns.
  [[nodiscard]] size_t q_vectors() const { return args.width / 4; }
};

/// Two rows, the pair `pair` of their block; a missing second one is zeros.
template <RowFormat kFirst, RowFormat kSecond>
void decode_pair_as(const Bf16State& state, const std::byte* first, const std::byte* second, size_t pair) {
  const size_t width = state.args.width;
  __m512i* rows = state.rows + 2 * pair % kChunkRows * state.row_vectors;
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

/// Four bytes (or eight of them where `kRepeats` is 2) in all lanes.
template <size_t kRepeats>
TIDEPOOL_INLINE __m512i broadcast(const std::byte* from) {
  if constexpr (kRepeats == 1) {
    float value = 0;
    __builtin_memcpy(&value, from, sizeof value);
    return _mm512_castps_si512(_mm512_set1_ps(value));
  } else {
    double value = 0;
    __builtin_memcpy(&value, from, sizeof value);
    return _mm512_castpd_si512(_mm512_set1_pd(value));
  }
}

/// One tile of scores: kVectors vectors of heads, kRows rows of the chunk. Rows past the end are of another chunk, and
/// nobody looks at their scores.
template <size_t kRepeats, size_t kVectors, size_t kRows, size_t... kIndex>
void score_tile(const Bf16State& state, size_t first_vector, size_t part, size_t first_row, size_t score_row,
                std::index_sequence<kIndex...> /*sums*/) {
  const size_t q_vectors = state.q_vectors();
  const size_t q_stride = 2 / kRepeats * q_vectors;
  const __m512i* q = state.q + first_vector * q_stride + part * q_vectors;
  const auto* row = reinterpret_cast<const std::byte*>(state.rows + first_row * state.row_vectors) + part * 4;
  const size_t row_bytes = state.row_vectors * sizeof(__m512i);
  Vec::F sum[kVectors * kRows] = {(static_cast<void>(kIndex), Vec::zero())...};
  for (size_t v = 0; v < q_vectors; ++v) {
    ((sum[kIndex] = add_products(sum[kIndex], q[kIndex % kVectors * q_stride + v],
                                 broadcast<kRepeats>(row + kIndex / kVectors * row_bytes + v * 8))),
     ...);
  }
  float* scores = state.scores + score_row * state.lanes() + first_vector * kLanes;
  const auto store = [&](size_t index, Vec::F value) {
    float* to = scores + index / kVectors * state.lanes() + index % kVectors * kLanes;
    if (kRepeats == 2) {
      value = Vec::add(value, Vec::swap_pairs(value));
    } else if (part == 0) {
      return Vec::store(to, value);
    } else {
      value = Vec::add(Vec::load(to), value);
    }
    Vec::store(to, Vec::mul(value, Vec::all(state.args.scale)));
  };
  (store(kIndex, sum[kIndex]), ...);
}

/// Scores of `kVectors` vectors of heads with a chunk. Sixteen sums at a time hide the latency of a product.
template <size_t kRepeats, size_t kVectors>
void score_vectors(const Bf16State& state, size_t first_vector, size_t score_row, size_t count) {
  constexpr size_t kSums = 16;
  constexpr size_t kRows = kSums / kVectors;
  for (size_t part = 0; part < 2 / kRepeats; ++part) {
    for (size_t row = 0; row < count; row += kRows) {
      score_tile<kRepeats, kVectors, kRows>(state, first_vector, part, row, score_row + row,
                                            std::make_index_sequence<kSums>());
    }
  }
}

/// Scores of all heads with the chunk, whose first row is row `score_row` of its block.
void score_chunk(const Bf16State& state, size_t score_row, size_t count) {
  if (state.repeats == 2) return score_vectors<2, 1>(state, 0, score_row, count);
  size_t v = 0;
  for (; v + 2 <= state.lane_vectors; v += 2)
    score_vectors<1, 2>(state, v, score_row, count);
  if (v < state.lane_vectors) score_vectors<1, 1>(state, v, score_row, count);
}

/// Scores of a block become probabilities; max and sum of all heads move on.
void normalise_block(const Bf16State& state, size_t count) {
  alignas(64) static constexpr struct {
    uint16_t word[32];
  } kByTurns = {{0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31}};
  const size_t lanes = state.lanes();
  for (size_t lane = 0; lane < lanes; lane += kLanes) {
    const float* scores = state.scores + lane;
    const Vec::F old_max = Vec::load(state.max + lane);
    // max gives its second operand where the first is NaN: a NaN score leaves the max alone and shows in the sum.
    Vec::F max = old_max;
    for (size_t j = 0; j < count; ++j)
      max = Vec::max(Vec::load(scores + j * lanes), max);
    Vec::F sum = Vec::zero();
    float* p = state.p + lane;
    for (size_t j = 0; j < count; j += 2, p += lanes) {
      const Vec::F first = exponential(Vec::sub(Vec::load(scores + j * lanes), max));
      const bool has_second = j + 1 < count;
      const Vec::F second = has_second ? exponential(Vec::sub(Vec::load(scores + (j + 1) * lanes), max)) : Vec::zero();
      sum = Vec::add(Vec::add(sum, first), second);
      const auto rounded = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(second, first));
      _mm512_store_si512(p, _mm512_permutexvar_epi16(_mm512_load_si512(kByTurns.word), rounded));
    }
    const Vec::F rescale = exponential(Vec::sub(old_max, max));
    Vec::store(state.rescale + lane, rescale);
    Vec::store(state.max + lane, max);
    Vec::store(state.sum + lane, Vec::add(Vec::mul(Vec::load(state.sum + lane), rescale), sum));
  }
}

/// Sums become denominators.
void add_sinks(const Bf16State& state) {
  for (size_t h = 0; h < state.args.heads; ++h) {
    const size_t lane = h * state.repeats;
    state.sum[lane] += exponential(state.args.sink[h] - state.max[lane]);
  }
}

/// Rows [first, first + count) of the list: a block, or what is left for one.
struct RowBlock {
  size_t first;
  size_t count;
  bool is_first;
  bool is_last;
};

/// Vectors of columns that value_pairs_tile does together.
inline constexpr size_t kValueVectors = 4;

/// total[h, i] = total[h, i] * rescale[h] + sum_j p[h, j] row[j, i] for one tile of heads and 64 columns. With the last
/// block they are divided by the denominator, put in order, and are the results.
template <size_t... kIndex>
void value_pairs_tile(const Bf16State& state, const RowBlock& block, size_t first_head, size_t first_vector,
                      std::index_sequence<kIndex...> /*sums*/) {
  const AttentionArgs& args = state.args;
  const size_t lanes = state.lanes();
  size_t head[kTileHeads];
  size_t lane[kTileHeads];
  for (size_t h = 0; h < kTileHeads; ++h) {
    head[h] = smaller(first_head + h, args.heads - 1);
    lane[h] = head[h] * state.repeats;
  }
  float* totals = state.totals + (first_vector * state.lanes() + first_head * kValueVectors) * kLanes;
  Vec::F sum[kTileHeads * kValueVectors] = {(block.is_first ? Vec::zero() : Vec::load(totals + kIndex * kLanes))...};
  ((sum[kIndex] = Vec::mul(sum[kIndex], Vec::all(state.rescale[lane[kIndex / kValueVectors]]))), ...);
  const __m512i* value = state.pairs + first_vector;
  const float* p = state.p;
  for (size_t j = 0; j < block.count; j += 2, value += state.pair_vectors, p += lanes) {
    const __m512i v[kValueVectors] = {value[0], value[1], value[2], value[3]};
    const Vec::F weight[kTileHeads] = {Vec::all(p[lane[0]]), Vec::all(p[lane[1]]), Vec::all(p[lane[2]]),
                                       Vec::all(p[lane[3]])};
    ((sum[kIndex] =
          add_products(sum[kIndex], _mm512_castps_si512(weight[kIndex / kValueVectors]), v[kIndex % kValueVectors])),
     ...);
  }
  if (!block.is_last) return (Vec::store(totals + kIndex * kLanes, sum[kIndex]), ...);
  const auto finish = [&](size_t h, size_t v, Vec::F low, Vec::F high) {
    const Vec::F denominator = Vec::all(state.sum[lane[h]]);
    const __m512i a = _mm512_castps_si512(Vec::div(low, denominator));
    const __m512i b = _mm512_castps_si512(Vec::div(high, denominator));
    float* out = args.out + head[h] * args.width + (first_vector + v) * kLanes;
    Vec::store(out, _mm512_castsi512_ps(first_by_turns(a, b)));
    Vec::store(out + kLanes, _mm512_castsi512_ps(last_by_turns(a, b)));
  };
  for (size_t h = 0; h < kTileHeads; ++h) {
    for (size_t v = 0; v < kValueVectors; v += 2)
      finish(h, v, sum[h * kValueVectors + v], sum[h * kValueVectors + v + 1]);
  }
}
static_assert(kTileHeads == 4 && kValueVectors == 4);

void decode_chunk(const Bf16State& state, const RowBlock& block, size_t first, size_t count) {
  const AttentionArgs& args = state.args;
  for (size_t j = first; j < first + count; j += 2) {
    const ListedRow row = listed_row(args, block.first + j);
    const bool has_second = j + 1 < first + count;
    decode_pair(state, row, has_second ? listed_row(args, block.first + j + 1) : ListedRow{row.format, nullptr}, j / 2);
  }
}

/// Asks for memory that a chunk will be decoded to: when the first block comes, it may be in no cache.
void prefetch_pairs(const Bf16State& state, size_t first_pair) {
  const __m512i* pair = state.pairs + first_pair * state.pair_vectors;
  for (size_t v = 0; first_pair < kBlockPairs && v < kChunkRows / 2 * state.pair_vectors; ++v)
    _mm_prefetch(reinterpret_cast<const char*>(pair + v), _MM_HINT_T1);
}

/// Asks for the results that a tile will write.
void prefetch_results(const Bf16State& state, size_t first_head, size_t first_vector) {
  for (size_t h = first_head; h < smaller(first_head + kTileHeads, state.args.heads); ++h) {
    for (size_t v = 0; v < kValueVectors; ++v) {
      const float* out = state.args.out + h * state.args.width + (first_vector + v) * kLanes;
      _mm_prefetch(reinterpret_cast<const char*>(out), _MM_HINT_T0);
    }
  }
}

void attend_block_in_pairs(const Bf16State& state, const RowBlock& block) {
  const AttentionArgs& args = state.args;
  for (size_t first = 0; first < block.count; first += kChunkRows) {
    const size_t count = smaller(kChunkRows, block.count - first);
    decode_chunk(state, block, first, count);
    for (size_t j = 0; j < count; ++j)
      prefetch_listed_row(args, block.first + first + kAttentionBlock + j);
    if (block.is_first) prefetch_pairs(state, (first + kChunkRows) / 2);
    score_chunk(state, first, count);
  }
  normalise_block(state, block.count);
  if (block.is_last) add_sinks(state);
  for (size_t v = 0; v < 2 * state.row_vectors; v += kValueVectors) {
    for (size_t h = 0; h < args.heads; h += kTileHeads) {
      if (block.is_last) prefetch_results(state, h + kTileHeads, v);
      value_pairs_tile(state, block, h, v, std::make_index_sequence<kTileHeads * kValueVectors>());
    }
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

/// Every second pair of 64 values, as bfloat16, from the first (`part` 0) or the second one on. `lower` gets the bits
/// that this loses.
TIDEPOOL_INLINE __m512i narrowed_pairs(const float* x, size_t part, __m512i& lower) {
  for (size_t i = 0; i < 4; ++i)
    lower = _mm512_or_si512(lower, _mm512_loadu_si512(x + i * kLanes));
  const __m512i even = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
  const __m512i index = _mm512_add_epi32(even, _mm512_set1_epi32(static_cast<int>(part)));
  return _mm512_permutex2var_epi32(narrowed(x), index, narrowed(x + kWords));
}

/// Writes queries with a head to each lane (lanes past the last head have it once more). False if bfloat16 does not
/// hold them.
bool turn_queries(const Bf16State& state) {
  const AttentionArgs& args = state.args;
  __m512i lower = _mm512_setzero_si512();
  for (size_t v = 0; v < state.lane_vectors; ++v) {
    for (size_t column = 0; column < args.width; column += kColumnStep) {
      for (size_t part = 0; part < 2 / state.repeats; ++part) {
        __m512i x[kLanes];
        for (size_t l = 0; l < kLanes; ++l) {
          const size_t head = smaller((v * kLanes + l) / state.repeats, args.heads - 1);
          x[l] = narrowed_pairs(args.q + head * args.width + column, state.repeats == 2 ? l % 2 : part, lower);
        }
        __m512i* to = state.q + (v * (2 / state.repeats) + part) * state.q_vectors() + column / 4;
        turn(x, [to](size_t l, __m512i numbers) { _mm512_store_si512(to + l, numbers); });
      }
    }
  }
  return _mm512_test_epi32_mask(lower, _mm512_set1_epi32(0xffff)) == 0;
}

}  // namespace

namespace avx512bf16 {

/// What does not suit bfloat16 (other numerics, other widths, scales near the ends of E8M0) goes to the version that
/// multiplies in binary32.
void sparse_attention(const AttentionArgs& args) noexcept {
  for (size_t j = 0; j < kAttentionBlock; ++j)
    prefetch_listed_row(args, j);
  const size_t total = args.window.count + args.global.count;
  const bool is_suited =
      args.round_probabilities && args.width % kColumnStep == 0 && args.heads * args.width * total != 0;
  const Bf16State state(args);
  if (!is_suited || !are_exact(args.window, args.width) || !are_exact(args.global, args.width) || !turn_queries(state))
    return avx512::sparse_attention(args);
  for (size_t lane = 0; lane < state.lanes(); ++lane) {
    state.max[lane] = -1e30F;
    state.sum[lane] = 0;
  }
  for (size_t first = 0; first < total; first += kAttentionBlock) {
    const size_t count = smaller(kAttentionBlock, total - first);
    attend_block_in_pairs(state, {first, count, first == 0, first + count == total});
  }
}

}  // namespace avx512bf16
}  // namespace tidepool::kernels
