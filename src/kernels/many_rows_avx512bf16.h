#pragma once

#include <bit>
#include <utility>

#include "kernels/few_rows_avx512bf16.h"
#include "kernels/turn_avx512bf16.h"

// Products by VDPBF16PS (products_avx512bf16.h) for many rows of x, blocked as in Goto and van de Geijn, "Anatomy of
// High-Performance Matrix Multiplication".
//
// The 16 sums of a row and an output never meet before the end: they are 16 chains of products, chain l over lane l of
// all vectors. Here a vector holds the same sum of 16 outputs, and chains are computed one after the other, so that a
// chain of nine rows and 48 outputs stays in registers from its first product to its last. For this, weights and rows
// are both turned, once: dword l of an output's (a row's) vector v becomes pair v of chain l. Chains are taken in the
// order in which Vec::sum adds them up, as the leaves of a tree, of which no more than one sum a level waits in memory.
//
// Weights are decoded once for all rows, 48 outputs at a time, into a strip that stays in the second cache. One chain
// of it stays in the first while a block of rows passes.

namespace tidepool::kernels {
namespace {

/// Sums that wait: one at each level below the root, and the root.
inline constexpr size_t kLevels = 5;

/// Nine rows times three vectors of outputs: 27 sums, three weights and a pair of x in registers, 12 loads for 27
/// products. (14 times two takes 16 for 28, and each row of x once per 32 outputs in place of 48.)
inline constexpr size_t kStepRows = 9;
inline constexpr size_t kStripVectors = 3;
/// Steps to which one chain of weights is brought into the first cache.
inline constexpr size_t kBlockSteps = 8;
/// Vectors of a chain, those that keep chains apart included: a strip then takes half of the second cache of the
/// machines this is for. 5,120 columns have 160 pairs a chain.
inline constexpr size_t kChainVectors = 512;

/// From one chain of a strip to the next, in vectors: odd, or the chains' lines would share few sets of the first
/// cache.
constexpr size_t strip_stride(size_t chain_pairs, size_t vectors) {
  return chain_pairs * vectors | 1U;
}

struct alignas(64) Workspace {
  __m512i weights[kChains * strip_stride(kChainVectors, 1)];
  Vec::F waiting[kLevels][kBlockSteps][kStepRows * kStripVectors];
};

/// Wider matrices have strips of fewer vectors, and those whose strips would not fit either are no work for this file.
inline size_t strip_vectors(size_t chain_pairs) {
  return smaller(kStripVectors, kChainVectors / chain_pairs);
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

/// Turns rows [begin, end), 16 at most: a vector has one pair of each, and goes in parts to the steps they are of.
template <typename Format>
void turn_rows(const PackArgs& args, const TurnedRows& rows, size_t begin, size_t end) {
  struct Part {
    uint32_t* to;  ///< of the first row of the vector, which may be of another step
    size_t chain_stride;
    size_t pair_stride;
    __mmask16 present;
  };
  // Where there are several steps they have five rows or more.
  Part parts[5];
  size_t count = 0;
  for (size_t s = begin * rows.steps() / rows.count; s < rows.steps() && rows.first_row(s) < end; ++s) {
    const TurnedRows::Step step = rows.step(s);
    const size_t from = step.first > begin ? step.first : begin;
    const size_t to = smaller(step.first + step.count, end);
    if (from >= to) continue;
    auto* packed = reinterpret_cast<uint32_t*>(args.packed) + step.begin + (from - step.first);
    const unsigned present = (1U << (to - begin)) - (1U << (from - begin));
    parts[count++] = {packed - (from - begin), step.chain_stride, step.count, static_cast<__mmask16>(present)};
  }
  alignas(64) __m512i vectors[kGroupVectors][Vec::kLanes] = {};
  for (size_t g = 0; g * kGroup < args.in; ++g) {
    for (size_t r = begin; r < end; ++r) {
      const Group group = pack_group<Format>(args.x + r * args.x_stride, args.in, g);
      for (size_t v = 0; v < kGroupVectors; ++v)
        vectors[v][r - begin] = group.vector[v];
    }
    for (size_t v = 0; v < kGroupVectors; ++v) {
      turn(vectors[v], [&](size_t chain, __m512i pairs) {
        for (size_t i = 0; i < count; ++i) {
          uint32_t* const to = parts[i].to + kChainOrder[chain] * parts[i].chain_stride;
          _mm512_mask_storeu_epi32(to + (g * kGroupVectors + v) * parts[i].pair_stride, parts[i].present, pairs);
        }
      });
    }
  }
}

/// See KernelTable::pack_inputs.
template <typename Format>
void pack_inputs_as(const PackArgs& args) {
  const TurnedRows rows = {args.rows, (args.in + kGroup - 1) / kGroup * kGroupVectors};
  for (size_t begin = args.begin; begin < args.end; begin += Vec::kLanes)
    turn_rows<Format>(args, rows, begin, smaller(begin + Vec::kLanes, args.end));
}

/// Codes are fetched this far ahead of their use, in bytes: 16 rows are read by turns, so it is a few kilobytes in all.
/// From the end of its row on these are the codes of the output 16 further on, with which the next panel begins. (1 %
/// of 512 rows' products.)
inline constexpr size_t kFillAhead = 512;

template <typename Format>
TIDEPOOL_INLINE void prefetch_panel(const WeightRow<Format>& row, size_t in, size_t g) {
  const size_t row_bytes = Format::row_bytes(in);
  const bool is_within = g * Format::kGroupBytes + kFillAhead < row_bytes;
  row.prefetch_group(g, is_within ? kFillAhead : kFillAhead + (Vec::kLanes - 1) * row_bytes);
}

/// Decodes and turns `outputs` outputs from `first` on. Those missing of 16 are zeros: they are multiplied too, and
/// their results left alone.
template <typename Format>
void fill_panel(const MatrixView& weight, size_t first, size_t outputs, TurnedPanel turned) {
  alignas(64) std::byte cut[Vec::kLanes][Format::kGroupBytes] = {};
  uint8_t cut_scales[Vec::kLanes][kGroupBlocks] = {};
  WeightRow<Format> rows[Vec::kLanes];
  PanelGroup group;
  for (size_t o = 0; o < Vec::kLanes; ++o) {
    if (o < outputs) rows[o] = WeightRow<Format>(weight, first + o);
    group.codes[o] = cut[o];
    group.scales[o] = cut_scales[o];
  }
  const size_t whole = weight.in / kGroup;
  for (size_t g = 0; g < whole; ++g) {
    for (size_t o = 0; o < outputs; ++o) {
      prefetch_panel(rows[o], weight.in, g);
      group.codes[o] = rows[o].codes + g * Format::kGroupBytes;
      if constexpr (Format::kHasScales) group.scales[o] = rows[o].scales + g * kGroupBlocks;
    }
    Format::decode_turned(group, turned);
    turned.next_group();
  }
  if (whole * kGroup == weight.in) return;
  for (size_t o = 0; o < outputs; ++o) {
    copy_cut(rows[o], weight.in, whole, cut[o], cut_scales[o]);
    group.codes[o] = cut[o];
    group.scales[o] = cut_scales[o];
  }
  Format::decode_turned(group, turned);
}

/// Decodes `outputs` outputs from `first` on, for a strip of `vectors` vectors.
template <typename Format>
void fill_strip(const MatrixView& weight, size_t first, size_t outputs, size_t vectors, size_t chain_pairs,
                __m512i* strip) {
  const size_t stride = strip_stride(chain_pairs, vectors);
  for (size_t panel = 0; panel < vectors; ++panel) {
    fill_panel<Format>(weight, first + panel * Vec::kLanes, smaller(outputs - panel * Vec::kLanes, Vec::kLanes),
                       {strip + panel, stride, vectors});
  }
}

/// Rows are fetched this far ahead of their use, in bytes, past the second cache: a strip reads each once, and what
/// stays there are decoded weights and the next strip's codes. (1 to 2 % faster than 8 KiB ahead into that cache.)
inline constexpr size_t kRowsAhead = 2048;

/// A chain of a step: `pairs` pairs of columns of kSums / kVectors rows. To its sums those of the `merges` levels that
/// wait are added; what comes out waits at the next level. Indices are constants, and not those of a loop, because gcc
/// decides before it unrolls loops whether an array can be registers.
template <size_t kVectors, size_t... kSum>
void multiply_chain(const __m512i* weights, const uint32_t* x, size_t pairs, size_t merges, Vec::F* waiting,
                    std::index_sequence<kSum...> /*sums*/) {
  Vec::F sum[] = {(static_cast<void>(kSum), Vec::zero())...};
  for (size_t p = 0; p < pairs; ++p, weights += kVectors, x += sizeof...(kSum) / kVectors) {
    _mm_prefetch(reinterpret_cast<const char*>(x) + kRowsAhead, _MM_HINT_NTA);
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
      const __m512i* weights = work.weights + leaf * strip_stride(x.chain_pairs, kVectors);
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

/// All rows of x times all outputs asked for, in strips as equal as they can be. None has outputs of two FP8 scale
/// tiles in one vector.
template <typename Format>
__attribute__((noinline)) void linear_many(const LinearArgs& args, const TurnedRows& x, const std::byte* packed,
                                           float* y) {
  const auto* pairs = reinterpret_cast<const uint32_t*>(packed);
  Workspace work;
  for (size_t first = args.out_begin; first < args.out_end;) {
    const size_t left = args.out_end - first;
    const size_t left_vectors = (left + Vec::kLanes - 1) / Vec::kLanes;
    const size_t strips = (left_vectors + strip_vectors(x.chain_pairs) - 1) / strip_vectors(x.chain_pairs);
    const size_t skipped = first % Vec::kLanes;
    const size_t vectors = skipped == 0 ? (left_vectors + strips - 1) / strips : 1;
    const size_t outputs = smaller(vectors * Vec::kLanes - skipped, left);
    switch (vectors) {
      case 1: multiply_strip<Format, 1>(args, x, pairs, first, outputs, y, work); break;
      case 2: multiply_strip<Format, 2>(args, x, pairs, first, outputs, y, work); break;
      default: multiply_strip<Format, 3>(args, x, pairs, first, outputs, y, work);
    }
    first += outputs;
  }
}

}  // namespace
}  // namespace tidepool::kernels
