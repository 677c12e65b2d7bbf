#include "kernels/decode_avx512bf16.h"
#include "kernels/kernel_table_internal.h"

// Attention of many queries to the same keys, in pairs of bfloat16. Keys lie in tiles of 32, so that a vector holds 16
// keys and scores need no sums across lanes; values lie in pairs of keys, so that a vector holds 16 columns.
//
// Scores of a few queries to all keys are kept, in binary32, in the second cache: with all of them the largest is known
// before any term is rounded, as in the reference, where a running maximum would round each term against another one.

namespace tidepool::kernels {
namespace {

constexpr size_t kLanes = Vec::kLanes;
/// Pairs that one broadcast gives all lanes.
using Pair = uint32_t;

TIDEPOOL_INLINE __m512 add_products(__m512 sum, __m512i a, __m512i b) {
  return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
}
TIDEPOOL_INLINE __m512i all_lanes(Pair pair) {
  return _mm512_set1_epi32(static_cast<int>(pair));
}

/// Room for one call: queries in bfloat16, scores (then terms), sums of terms.
struct Scratch {
  size_t query_pairs;   ///< from one query to the next
  size_t score_stride;  ///< likewise, an odd number of cache lines: powers of two would share few sets
  Pair* queries;
  float* scores;
  float* sums;

  explicit Scratch(const DenseAttentionArgs& args)
      : query_pairs(args.width / 2),
        score_stride(dense_score_stride(args.count)),
        queries(reinterpret_cast<Pair*>(args.scratch)),
        scores(args.scratch + kDenseQueries * query_pairs),
        sums(scores + kDenseQueries * score_stride) {}
};

constexpr size_t kTileVectors = kDenseKeys / kLanes;
static_assert(kTileVectors == 2);

/// scores[query, tile * 32 ...] = q . k for `sizeof...(kIndex)` / 2 queries and one tile of keys. Indices are
/// constants, so that sums stay in registers.
template <size_t... kIndex>
TIDEPOOL_INLINE void score_tile(const DenseAttentionArgs& args, const Scratch& scratch, size_t first, size_t tile,
                                std::index_sequence<kIndex...> /*sums*/) {
  const size_t pairs = args.width / 2;
  const auto* keys = reinterpret_cast<const __m512i*>(args.keys) + tile * pairs * kTileVectors;
  const Pair* query = scratch.queries + first * scratch.query_pairs;
  __m512 sum[sizeof...(kIndex)] = {(static_cast<void>(kIndex), _mm512_setzero_ps())...};
  for (size_t pair = 0; pair < pairs; ++pair) {
    const __m512i key[kTileVectors] = {keys[pair * kTileVectors], keys[pair * kTileVectors + 1]};
    ((sum[kIndex] = add_products(sum[kIndex], all_lanes(query[kIndex / kTileVectors * scratch.query_pairs + pair]),
                                 key[kIndex % kTileVectors])),
     ...);
  }
  float* scores = scratch.scores + first * scratch.score_stride + tile * kDenseKeys;
  (_mm512_storeu_ps(scores + kIndex / kTileVectors * scratch.score_stride + kIndex % kTileVectors * kLanes,
                    sum[kIndex]),
   ...);
}

/// Queries whose sums fit the registers with one tile of keys, or with four vectors of columns.
constexpr size_t kScoreQueries = 12;
constexpr size_t kValueQueries = 6;
constexpr size_t kValueVectors = 4;
static_assert(kDenseQueries % kScoreQueries == 0 && kDenseQueries % kValueQueries == 0);

/// The terms of a query's softmax, rounded to bfloat16, in place of its scores, behind the last key zeros; the sum of
/// the unrounded ones.
float make_terms(float* scores, size_t count, float scale) {
  const size_t padded = (count + kDenseKeys - 1) / kDenseKeys * kDenseKeys;
  const __m512 nothing = _mm512_set1_ps(-__builtin_inff());
  const auto load = [&](size_t i) {
    return i + kLanes <= count ? _mm512_loadu_ps(scores + i)
           : i >= count        ? nothing
                        : _mm512_mask_loadu_ps(nothing, static_cast<__mmask16>((1U << (count - i)) - 1U), scores + i);
  };
  __m512 most = nothing;
  for (size_t i = 0; i < padded; i += kLanes)
    most = _mm512_max_ps(most, load(i));
  const __m512 largest = Vec::all(Vec::largest(most));
  const __m512 factor = Vec::all(scale);
  const auto term = [&](__m512 score) { return exponential(Vec::mul(Vec::sub(score, largest), factor)); };
  __m512 sums[2] = {Vec::zero(), Vec::zero()};
  for (size_t i = 0; i < padded; i += 2 * kLanes) {
    const __m512 first = term(load(i));
    const __m512 second = term(load(i + kLanes));
    sums[0] = Vec::add(sums[0], first);
    sums[1] = Vec::add(sums[1], second);
    // The terms of 32 keys in half of the memory of their scores, which were read.
    _mm512_storeu_si512(scores + i / 2, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(second, first)));
  }
  return Vec::sum(Vec::add(sums[0], sums[1]));
}

/// out[query, columns] (+)= sum over pairs [begin, end) of keys of their terms times values.
template <size_t kVectors, size_t... kIndex>
TIDEPOOL_INLINE void add_values(const DenseAttentionArgs& args, const Scratch& scratch, size_t first, size_t column,
                                size_t begin, size_t end, std::index_sequence<kIndex...> /*sums*/) {
  const size_t row_vectors = args.width / kLanes;
  const auto* values = reinterpret_cast<const __m512i*>(args.values) + column / kLanes;
  const auto* terms = reinterpret_cast<const Pair*>(scratch.scores + first * scratch.score_stride);
  float* out = args.out + first * args.out_stride + column;
  const auto place = [&](size_t index) { return out + index / kVectors * args.out_stride + index % kVectors * kLanes; };
  __m512 sum[sizeof...(kIndex)] = {(begin == 0 ? _mm512_setzero_ps() : _mm512_loadu_ps(place(kIndex)))...};
  for (size_t pair = begin; pair < end; ++pair) {
    __m512i value[kVectors];
    for (size_t v = 0; v < kVectors; ++v)
      value[v] = values[pair * row_vectors + v];
    ((sum[kIndex] = add_products(sum[kIndex], all_lanes(terms[kIndex / kVectors * scratch.score_stride + pair]),
                                 value[kIndex % kVectors])),
     ...);
  }
  (_mm512_storeu_ps(place(kIndex), sum[kIndex]), ...);
}

/// Pairs of keys whose values stay in the first cache while all queries meet them: 16 KiB at the released width.
constexpr size_t kValuePairs = 64;

template <size_t kVectors>
void add_columns(const DenseAttentionArgs& args, const Scratch& scratch, size_t column, size_t begin, size_t end) {
  size_t q = 0;
  for (; q + kValueQueries <= args.queries; q += kValueQueries)
    add_values<kVectors>(args, scratch, q, column, begin, end, std::make_index_sequence<kValueQueries * kVectors>());
  for (; q < args.queries; ++q)
    add_values<kVectors>(args, scratch, q, column, begin, end, std::make_index_sequence<kVectors>());
}

/// Two rows of 16 columns as vectors of pairs: lane l has (first[l], second[l]). Both are exact in bfloat16.
TIDEPOOL_INLINE __m512i paired(__m512 first, __m512 second) {
  // 0xe4: where the mask, `second`, else `first`.
  const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000U));
  return _mm512_ternarylogic_epi32(_mm512_castps_si512(second), _mm512_srli_epi32(_mm512_castps_si512(first), 16),
                                   upper, 0xe4);
}

/// One tile of keys: vector 2 p + h has columns 2 p and 2 p + 1 of keys 16 h to 16 h + 15.
void pack_keys(const DensePackArgs& args, size_t tile) {
  const size_t pairs = args.width / 2;
  auto* packed = reinterpret_cast<Pair*>(args.packed_keys) + tile * pairs * kDenseKeys;
  for (size_t k = 0; k < kDenseKeys; ++k) {
    const size_t key = tile * kDenseKeys + k;
    for (size_t pair = 0; pair < pairs; ++pair) {
      Pair bits = 0;
      if (key < args.count) {
        uint32_t two[2];
        __builtin_memcpy(two, args.keys + key * args.stride + 2 * pair, sizeof two);
        bits = two[0] >> 16 | (two[1] & 0xffff0000U);
      }
      packed[pair * kDenseKeys + k] = bits;
    }
  }
}

void pack_values(const DensePackArgs& args, size_t tile) {
  auto* packed = reinterpret_cast<__m512i*>(args.packed_values) + tile * kDenseKeys / 2 * (args.width / kLanes);
  const auto row = [&](size_t key, size_t column) {
    return key < args.count ? _mm512_loadu_ps(args.values + key * args.stride + column) : _mm512_setzero_ps();
  };
  for (size_t key = tile * kDenseKeys; key < (tile + 1) * kDenseKeys; key += 2) {
    for (size_t column = 0; column < args.width; column += kLanes)
      _mm512_storeu_si512(packed++, paired(row(key, column), row(key + 1, column)));
  }
}

}  // namespace

namespace avx512bf16 {

void pack_dense(const DensePackArgs& args) noexcept {
  for (size_t tile = args.tile_begin; tile < args.tile_end; ++tile) {
    pack_keys(args, tile);
    pack_values(args, tile);
  }
}

void dense_attention(const DenseAttentionArgs& args) noexcept {
  const Scratch scratch(args);
  for (size_t q = 0; q < args.queries; ++q) {
    for (size_t column = 0; column < args.width; column += 2) {
      uint32_t two[2];
      __builtin_memcpy(two, args.q + q * args.q_stride + column, sizeof two);
      scratch.queries[q * scratch.query_pairs + column / 2] = two[0] >> 16 | (two[1] & 0xffff0000U);
    }
  }
  const size_t tiles = (args.count + kDenseKeys - 1) / kDenseKeys;
  for (size_t tile = 0; tile < tiles; ++tile) {
    size_t q = 0;
    for (; q + kScoreQueries <= args.queries; q += kScoreQueries)
      score_tile(args, scratch, q, tile, std::make_index_sequence<kScoreQueries * kTileVectors>());
    for (; q < args.queries; ++q)
      score_tile(args, scratch, q, tile, std::make_index_sequence<kTileVectors>());
  }
  for (size_t q = 0; q < args.queries; ++q)
    scratch.sums[q] = make_terms(scratch.scores + q * scratch.score_stride, args.count, args.scale);
  const size_t pairs = tiles * kDenseKeys / 2;
  for (size_t begin = 0; begin < pairs; begin += kValuePairs) {
    const size_t end = smaller(begin + kValuePairs, pairs);
    for (size_t column = 0; column < args.width;) {
      const size_t vectors = smaller(kValueVectors, (args.width - column) / kLanes);
      switch (vectors) {
        case 1: add_columns<1>(args, scratch, column, begin, end); break;
        case 2: add_columns<2>(args, scratch, column, begin, end); break;
        case 3: add_columns<3>(args, scratch, column, begin, end); break;
        default: add_columns<4>(args, scratch, column, begin, end); break;
      }
      column += vectors * kLanes;
    }
  }
  for (size_t q = 0; q < args.queries; ++q) {
    const __m512 sum = Vec::all(scratch.sums[q]);
    for (size_t column = 0; column < args.width; column += kLanes) {
      float* out = args.out + q * args.out_stride + column;
      Vec::store(out, Vec::div(Vec::load(out), sum));
    }
  }
}

}  // namespace avx512bf16
}  // namespace tidepool::kernels
