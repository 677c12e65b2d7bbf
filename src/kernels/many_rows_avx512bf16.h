#pragma once

#include <bit>
#include <utility>

#include "kernels/few_rows_avx512bf16.h"

// Products by VDPBF16PS (products_avx512bf16.h) for many rows of x, blocked as in Goto and van de Geijn, "Anatomy of
// High-Performance Matrix Multiplication".
//
// The 16 sums of a row and an output never meet before the end: they are 16 chains of products, chain l over lane l of
// all vectors. Here a vector holds the same sum of 16 outputs, and chains are computed one after the other, so that a
// chain of 14 rows and 32 outputs stays in registers from its first product to its last. For this, weights and rows are
// both turned, once: dword l of an output's (a row's) vector v becomes pair v of chain l. Chains are taken in the order
// in which Vec::sum adds them up, as the leaves of a tree, of which no more than one sum a level waits in memory.
//
// Weights are decoded once for all rows, 32 outputs at a time, into a strip that stays in the second cache. One chain
// of it stays in the first while a block of rows passes.

namespace tidepool::kernels {
namespace {

inline constexpr size_t kChains = Vec::kLanes;
/// Leaves of the tree that Vec::sum is, left to right; and, being its own inverse, the place of each chain there.
inline constexpr size_t kChainOrder[kChains] = {0, 2, 1, 3, 8, 10, 9, 11, 4, 6, 5, 7, 12, 14, 13, 15};
/// Sums that wait: one at each level below the root, and the root.
inline constexpr size_t kLevels = 5;

/// 14 rows times two vectors of outputs: 28 sums, two weights and a pair of x in registers, 16 loads for 28 products.
inline constexpr size_t kStepRows = 14;
inline constexpr size_t kStripVectors = 2;
/// Steps to which one chain of weights is brought into the first cache.
inline constexpr size_t kBlockSteps = 4;
/// Pairs of a chain of 8,192 columns: the strip then takes half of the second cache of the machines this is for.
inline constexpr size_t kChainPairs = 256;

/// From one chain of a strip to the next, in pairs: odd, or the chains' lines would share few sets of the first cache.
constexpr size_t strip_stride(size_t chain_pairs) {
  return chain_pairs | 1U;
}

struct alignas(64) Workspace {
  __m512i weights[kChains * strip_stride(kChainPairs) * kStripVectors];
  Vec::F waiting[kLevels][kBlockSteps][kStepRows * kStripVectors];
};

/// Wider matrices have strips of one vector, and those whose strips would not fit either are no work for this file.
inline size_t strip_vectors(size_t chain_pairs) {
  return smaller(kStripVectors, kStripVectors * kChainPairs / chain_pairs);
}

/// In each 128 bits: dword j of vector i becomes dword i of vector j.
TIDEPOOL_INLINE void turn_dwords(const __m512i* in, __m512i* out) {
  const __m512i low01 = _mm512_unpacklo_epi32(in[0], in[1]);
  const __m512i high01 = _mm512_unpackhi_epi32(in[0], in[1]);
  const __m512i low23 = _mm512_unpacklo_epi32(in[2], in[3]);
  const __m512i high23 = _mm512_unpackhi_epi32(in[2], in[3]);
  out[0] = _mm512_unpacklo_epi64(low01, low23);
  out[1] = _mm512_unpackhi_epi64(low01, low23);
  out[2] = _mm512_unpacklo_epi64(high01, high23);
  out[3] = _mm512_unpackhi_epi64(high01, high23);
}

/// Quarter j of vector i, 128 bits, becomes quarter i of vector j.
TIDEPOOL_INLINE void turn_quarters(__m512i a, __m512i b, __m512i c, __m512i d, __m512i* out) {
  const __m512i low01 = _mm512_shuffle_i32x4(a, b, 0x44);
  const __m512i high01 = _mm512_shuffle_i32x4(a, b, 0xee);
  const __m512i low23 = _mm512_shuffle_i32x4(c, d, 0x44);
  const __m512i high23 = _mm512_shuffle_i32x4(c, d, 0xee);
  out[0] = _mm512_shuffle_i32x4(low01, low23, 0x88);
  out[1] = _mm512_shuffle_i32x4(low01, low23, 0xdd);
  out[2] = _mm512_shuffle_i32x4(high01, high23, 0x88);
  out[3] = _mm512_shuffle_i32x4(high01, high23, 0xdd);
}

/// Dword l of vector i becomes dword i of the vector that is passed to store(l, vector).
template <typename Store>
TIDEPOOL_INLINE void turn(const __m512i* vectors, const Store& store) {
  __m512i fours[4][4];
  for (size_t i = 0; i < 4; ++i)
    turn_dwords(vectors + 4 * i, fours[i]);
  for (size_t j = 0; j < 4; ++j) {
    __m512i turned[4];
    turn_quarters(fours[0][j], fours[1][j], fours[2][j], fours[3][j], turned);
    for (size_t q = 0; q < 4; ++q)
      store(4 * q + j, turned[q]);
  }
}

/// Rows of x in steps of at most kStepRows, as equal as they can be. Of a block of kBlockSteps steps come all chains,
/// in the order in which they are taken, in each the steps, in these the pairs, and of each pair all rows: they are
/// read from front to back.
struct TurnedRows {
  size_t count;
  size_t chain_pairs;

  struct Step {
    size_t begin;         ///< of its first chain
    size_t chain_stride;  ///< from there to the next
    size_t first;
    size_t count;
  };
  [[nodiscard]] size_t steps() const { return (count + kStepRows - 1) / kStepRows; }
  [[nodiscard]] size_t first_row(size_t s) const { return count * s / steps(); }
  [[nodiscard]] Step step(size_t s) const {
    const size_t block = s - s % kBlockSteps;
    const size_t block_first = first_row(block);
    const size_t block_rows = first_row(smaller(block + kBlockSteps, steps())) - block_first;
    const size_t first = first_row(s);
    return {.begin = (block_first * kChains + first - block_first) * chain_pairs,
            .chain_stride = block_rows * chain_pairs,
            .first = first,
            .count = first_row(s + 1) - first};
  }
};

/// Turns rows [begin, end) of a step.
template <typename Format>
void turn_rows(const PackArgs& args, const TurnedRows::Step& step, size_t begin, size_t end) {
  auto* packed = reinterpret_cast<uint32_t*>(args.packed) + step.begin;
  alignas(64) __m512i vectors[kGroupVectors][Vec::kLanes] = {};
  const auto present = static_cast<__mmask16>((1U << (end - begin)) - 1);
  for (size_t g = 0; g * kGroup < args.in; ++g) {
    for (size_t r = begin; r < end; ++r) {
      const Group group = pack_group<Format>(args.x + r * args.x_stride, args.in, g);
      for (size_t v = 0; v < kGroupVectors; ++v)
        vectors[v][r - begin] = group.vector[v];
    }
    for (size_t v = 0; v < kGroupVectors; ++v) {
      turn(vectors[v], [&](size_t chain, __m512i pair) {
        const size_t at = (g * kGroupVectors + v) * step.count + (begin - step.first);
        _mm512_mask_storeu_epi32(packed + kChainOrder[chain] * step.chain_stride + at, present, pair);
      });
    }
  }
}

/// See KernelTable::pack_inputs.
template <typename Format>
void pack_inputs_as(const PackArgs& args) {
  const size_t chain_pairs = (args.in + kGroup - 1) / kGroup * kGroupVectors;
  const TurnedRows rows = {args.rows, chain_pairs};
  for (size_t s = 0; s < rows.steps(); ++s) {
    const TurnedRows::Step step = rows.step(s);
    const size_t begin = step.first > args.begin ? step.first : args.begin;
    const size_t end = smaller(step.first + step.count, args.end);
    if (begin < end) turn_rows<Format>(args, step, begin, end);
  }
}

/// Codes are fetched this far ahead of their use, in bytes: 16 rows are read by turns, so it is a few kilobytes in all.
inline constexpr size_t kFillAhead = 512;

/// Decodes and turns `outputs` outputs from `first` on, for a strip of `vectors` vectors. Those missing from the last
/// vector are zeros: they are multiplied too, and their results left alone.
template <typename Format>
void fill_strip(const MatrixView& weight, size_t first, size_t outputs, size_t vectors, size_t chain_pairs,
                __m512i* strip) {
  const size_t whole = weight.in / kGroup;
  for (size_t panel = 0; panel < vectors; ++panel) {
    alignas(64) __m512i decoded[kGroupVectors][Vec::kLanes] = {};
    const size_t present = smaller(outputs - panel * Vec::kLanes, Vec::kLanes);
    for (size_t g = 0; g * kGroup < weight.in; ++g) {
      for (size_t o = 0; o < present; ++o) {
        const WeightRow<Format> row(weight, first + panel * Vec::kLanes + o);
        row.prefetch_group(g, kFillAhead);
        const Group group = g < whole ? load_whole(row, g) : load_cut(row, weight.in, g);
        for (size_t v = 0; v < kGroupVectors; ++v)
          decoded[v][o] = group.vector[v];
      }
      for (size_t v = 0; v < kGroupVectors; ++v) {
        turn(decoded[v], [&](size_t chain, __m512i pairs) {
          const size_t at = kChainOrder[chain] * strip_stride(chain_pairs) + g * kGroupVectors + v;
          _mm512_store_si512(strip + at * vectors + panel, pairs);
        });
      }
    }
  }
}

/// Rows are fetched into the second cache this far ahead of their use, in bytes. (On two threads 2 % faster than 2 KiB
/// ahead into the first.)
inline constexpr size_t kRowsAhead = 8192;

/// A chain of a step: `pairs` pairs of columns of kSums / kVectors rows. To its sums those of the `merges` levels that
/// wait are added; what comes out waits at the next level. Indices are constants, and not those of a loop, because gcc
/// decides before it unrolls loops whether an array can be registers.
template <size_t kVectors, size_t... kSum>
void multiply_chain(const __m512i* weights, const uint32_t* x, size_t pairs, size_t merges, Vec::F* waiting,
                    std::index_sequence<kSum...> /*sums*/) {
  Vec::F sum[] = {(static_cast<void>(kSum), Vec::zero())...};
  for (size_t p = 0; p < pairs; ++p, weights += kVectors, x += sizeof...(kSum) / kVectors) {
    _mm_prefetch(reinterpret_cast<const char*>(x) + kRowsAhead, _MM_HINT_T1);
    ((sum[kSum] = add_products(sum[kSum], _mm512_load_si512(weights + kSum % kVectors),
                               _mm512_set1_epi32(static_cast<int>(x[kSum / kVectors])))),
     ...);
  }
  constexpr size_t kLevel = kBlockSteps * kStepRows * kStripVectors;
  for (size_t level = 0; level < merges; ++level, waiting += kLevel)
    ((sum[kSum] = Vec::add(waiting[kSum], sum[kSum])), ...);
  ((waiting[kSum] = sum[kSum]), ...);
}

using MultiplyChain = void (*)(const __m512i* weights, const uint32_t* x, size_t pairs, size_t merges, Vec::F* waiting);

template <size_t kVectors, size_t kRows>
void multiply_chain_of(const __m512i* weights, const uint32_t* x, size_t pairs, size_t merges, Vec::F* waiting) {
  multiply_chain<kVectors>(weights, x, pairs, merges, waiting, std::make_index_sequence<kRows * kVectors>());
}

/// multiply_chain by number of rows, from one on.
template <size_t kVectors>
struct Multiplies {
  MultiplyChain of_rows[kStepRows];
};
template <size_t kVectors, size_t... kRow>
constexpr Multiplies<kVectors> multiplies(std::index_sequence<kRow...> /*rows*/) {
  return {{multiply_chain_of<kVectors, kRow + 1>...}};
}
template <size_t kVectors>
inline constexpr Multiplies<kVectors> kMultiplies = multiplies<kVectors>(std::make_index_sequence<kStepRows>());

/// A part of the codes that the next strip decodes, fetched while this one is multiplied.
template <typename Format>
void prefetch_part(const LinearArgs& args, size_t first, size_t outputs, size_t part, size_t parts) {
  const size_t end_output = smaller(first + outputs, args.out_end);
  if (first >= end_output) return;
  const size_t row_bytes = Format::row_bytes(args.weight.in);
  const size_t lines = (end_output - first) * row_bytes / 64;
  const auto* codes = reinterpret_cast<const char*>(args.weight.data + first * row_bytes);
  for (size_t line = lines * part / parts; line < lines * (part + 1) / parts; ++line)
    _mm_prefetch(codes + line * 64, _MM_HINT_T1);
}

/// The finished sums of a step.
template <size_t kVectors>
void store_step(const Vec::F* sums, const TurnedRows::Step& step, size_t first, size_t outputs, size_t y_stride,
                float* y) {
  for (size_t r = 0; r < step.count; ++r) {
    for (size_t v = 0; v < kVectors; ++v) {
      Vec::store(y + (step.first + r) * y_stride + first + v * Vec::kLanes, sums[r * kVectors + v],
                 smaller(outputs - v * Vec::kLanes, Vec::kLanes));
    }
  }
}

/// All rows of x times `outputs` outputs from `first` on, kVectors vectors of them.
template <typename Format, size_t kVectors>
void multiply_strip(const LinearArgs& args, const TurnedRows& x, const uint32_t* pairs, size_t first, size_t outputs,
                    float* y, Workspace& work) {
  fill_strip<Format>(args.weight, first, outputs, kVectors, x.chain_pairs, work.weights);
  const size_t blocks = (x.steps() + kBlockSteps - 1) / kBlockSteps;
  for (size_t block = 0; block < blocks; ++block) {
    TurnedRows::Step steps[kBlockSteps];
    const size_t count = smaller(kBlockSteps, x.steps() - block * kBlockSteps);
    for (size_t s = 0; s < count; ++s)
      steps[s] = x.step(block * kBlockSteps + s);
    for (size_t leaf = 0; leaf < kChains; ++leaf) {
      const __m512i* weights = work.weights + leaf * strip_stride(x.chain_pairs) * kVectors;
      const auto merges = static_cast<size_t>(std::countr_one(leaf));
      for (size_t s = 0; s < count; ++s) {
        kMultiplies<kVectors>.of_rows[steps[s].count - 1](
            weights, pairs + steps[s].begin + leaf * steps[s].chain_stride, x.chain_pairs, merges, work.waiting[0][s]);
      }
      prefetch_part<Format>(args, first + outputs, kVectors * Vec::kLanes, block * kChains + leaf, blocks * kChains);
    }
    for (size_t s = 0; s < count; ++s)
      store_step<kVectors>(work.waiting[kLevels - 1][s], steps[s], first, outputs, args.y_stride, y);
  }
}

/// All rows of x times all outputs asked for.
template <typename Format>
__attribute__((noinline)) void linear_many(const LinearArgs& args, const TurnedRows& x, const std::byte* packed,
                                           float* y) {
  const auto* pairs = reinterpret_cast<const uint32_t*>(packed);
  Workspace work;
  const size_t step = strip_vectors(x.chain_pairs) * Vec::kLanes;
  for (size_t first = args.out_begin; first < args.out_end; first += step) {
    const size_t outputs = smaller(step, args.out_end - first);
    if (outputs > Vec::kLanes) {
      multiply_strip<Format, 2>(args, x, pairs, first, outputs, y, work);
    } else {
      multiply_strip<Format, 1>(args, x, pairs, first, outputs, y, work);
    }
  }
}

}  // namespace
}  // namespace tidepool::kernels
