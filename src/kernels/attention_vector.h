#pragma once

#include <utility>

#include "kernels/kernel_table.h"
#include "kernels/math_vector.h"

// Sparse attention and index scores for any Vec (attention_avx2.cpp, attention_avx512.cpp): rows are decoded once per
// block into scratch, then all heads use them.

namespace tidepool::kernels {
namespace {

inline constexpr size_t kLanes = Vec::kLanes;

/// Every E4M3 code, for scales: (1 + m / 8) * 2^(e - 7), or m * 2^-9 where e is 0. 0x7f and 0xff are NaN.
constexpr FloatTable e4m3_values() {
  FloatTable table{};
  for (unsigned code = 0; code < 256; ++code) {
    const unsigned exponent = (code >> 3) & 15U;
    const unsigned mantissa = code & 7U;
    // In units of 2^-9.
    const float units = static_cast<float>(exponent == 0 ? mantissa : (8 + mantissa) << (exponent - 1));
    const float magnitude = (code & 0x7fU) == 0x7fU ? __builtin_nanf("") : units / 512.0F;
    table.value[code] = code < 128 ? magnitude : -magnitude;
  }
  return table;
}
inline constexpr FloatTable kE4m3Values = e4m3_values();

/// kLanes values of a row from `column` on, a multiple of kLanes; past the end of a kFloat32 row they are zero.
template <RowFormat kFormat>
TIDEPOOL_INLINE Vec::F decode_columns(const std::byte* row, size_t width, size_t column) {
  switch (kFormat) {
    case RowFormat::kFp8Block32:
      return Vec::mul(Vec::decode_fp8(row + column),
                      Vec::all(e8m0_value(static_cast<uint8_t>(row[width + column / 32]))));
    case RowFormat::kFp4Block32:
      return Vec::mul(Vec::decode_fp4(row + column / 2),
                      Vec::all(e8m0_value(static_cast<uint8_t>(row[width / 2 + column / 32]))));
    case RowFormat::kFp4Block16:
      return Vec::mul(Vec::decode_fp4(row + column / 2),
                      Vec::all(kE4m3Values.value[static_cast<uint8_t>(row[width / 2 + column / 16])]));
    case RowFormat::kFloat32: return Vec::load(reinterpret_cast<const float*>(row) + column, width - column);
  }
  return Vec::zero();
}

template <RowFormat kFormat>
void decode_row_as(const std::byte* row, size_t width, float* out) {
  for (size_t column = 0; column < width; column += kLanes) {
    Vec::store(out + column, decode_columns<kFormat>(row, width, column), width - column);
  }
}

inline void decode_row(RowFormat format, const std::byte* row, size_t width, float* out) {
  switch (format) {
    case RowFormat::kFp8Block32: return decode_row_as<RowFormat::kFp8Block32>(row, width, out);
    case RowFormat::kFp4Block16: return decode_row_as<RowFormat::kFp4Block16>(row, width, out);
    case RowFormat::kFp4Block32: return decode_row_as<RowFormat::kFp4Block32>(row, width, out);
    case RowFormat::kFloat32: return decode_row_as<RowFormat::kFloat32>(row, width, out);
  }
}

/// Rows and heads whose kLanes sums sit in registers together; Vec::sums then adds them up at once.
inline constexpr size_t kTileRows = 4;
inline constexpr size_t kTileHeads = kLanes / kTileRows;

/// The scratch of one call and what it holds between blocks.
struct AttentionState {
  const AttentionArgs& args;
  size_t stride;   ///< of rows
  float* rows;     ///< [64, stride], this block's rows, decoded
  float* p;        ///< [heads, 64], their scores, then their probabilities
  float* max;      ///< [heads]
  float* sum;      ///< [heads]
  float* rescale;  ///< [heads], what this block's new max does to the sums so far

  explicit AttentionState(const AttentionArgs& call)
      : args(call),
        stride(call.width + kAttentionRowPadding),
        rows(call.scratch),
        p(rows + kAttentionBlock * stride),
        max(p + kAttentionBlock * call.heads),
        sum(max + call.heads),
        rescale(sum + call.heads) {}
};

/// The first `count` values (of at least one vector where `kIsWhole`).
template <bool kIsWhole>
TIDEPOOL_INLINE Vec::F load_part(const float* from, size_t count) {
  return kIsWhole ? Vec::load(from) : Vec::load(from, count);
}

/// One tile's products of the kLanes columns from `i` on, of which `rest` exist. Indices are constants, and not those
/// of a loop, because gcc decides before it unrolls loops whether an array can be registers.
template <bool kIsWhole, size_t... kIndex>
TIDEPOOL_INLINE void add_products(const float* const* head, const float* const* row, size_t i, size_t rest,
                                  Vec::F (&sum)[kTileHeads * kTileRows], std::index_sequence<kIndex...> /*sums*/) {
  static_assert(kTileRows == 4);
  const Vec::F k[kTileRows] = {load_part<kIsWhole>(row[0] + i, rest), load_part<kIsWhole>(row[1] + i, rest),
                               load_part<kIsWhole>(row[2] + i, rest), load_part<kIsWhole>(row[3] + i, rest)};
  ((sum[kIndex] =
        Vec::fma(load_part<kIsWhole>(head[kIndex / kTileRows] + i, rest), k[kIndex % kTileRows], sum[kIndex])),
   ...);
}

/// q . row for one tile: lane 4 h + j is head h with row j. `kIsWhole`: the width is a multiple of kLanes.
template <bool kIsWhole, size_t... kIndex>
TIDEPOOL_INLINE Vec::F multiply_tile(const float* const* head, const float* const* row, size_t width,
                                     std::index_sequence<kIndex...> indices) {
  Vec::F sum[kTileHeads * kTileRows] = {(static_cast<void>(kIndex), Vec::zero())...};
  for (size_t i = 0; i < width; i += kLanes)
    add_products<kIsWhole>(head, row, i, width - i, sum, indices);
  return Vec::sums(sum);
}

/// p[h, j] = scale * q[h] . row[j] for one tile. Heads and rows past the end repeat the last one.
template <bool kIsWhole>
void score_tile(const AttentionState& state, size_t first_head, size_t first_row, size_t count) {
  const AttentionArgs& args = state.args;
  const float* head[kTileHeads];
  const float* row[kTileRows];
  for (size_t h = 0; h < kTileHeads; ++h)
    head[h] = args.q + smaller(first_head + h, args.heads - 1) * args.width;
  for (size_t j = 0; j < kTileRows; ++j)
    row[j] = state.rows + smaller(first_row + j, count - 1) * state.stride;
  const Vec::F products =
      multiply_tile<kIsWhole>(head, row, args.width, std::make_index_sequence<kTileHeads * kTileRows>());
  float scores[kLanes];
  Vec::store(scores, Vec::mul(products, Vec::all(args.scale)));
  for (size_t h = 0; h < kTileHeads && first_head + h < args.heads; ++h) {
    __builtin_memcpy(state.p + (first_head + h) * kAttentionBlock + first_row, scores + h * kTileRows,
                     kTileRows * sizeof(float));
  }
}

/// Rows that all heads meet while they are in the first cache: 16 KiB of it at the released width, beside 8 KiB of
/// queries that pass through.
inline constexpr size_t kScoreRows = 8;

template <bool kIsWhole>
void score_block(const AttentionState& state, size_t count) {
  for (size_t first_row = 0; first_row < count; first_row += kScoreRows) {
    const size_t end = smaller(first_row + kScoreRows, count);
    for (size_t h = 0; h < state.args.heads; h += kTileHeads) {
      for (size_t j = first_row; j < end; j += kTileRows)
        score_tile<kIsWhole>(state, h, j, count);
    }
  }
}

/// The largest score of one head so far. Scores past `count` become -inf, so that their probabilities are zero.
inline float largest_score(const AttentionState& state, size_t head, size_t count) {
  float* p = state.p + head * kAttentionBlock;
  for (size_t j = count; j < kAttentionBlock; ++j)
    p[j] = -__builtin_inff();
  // max gives its second operand where the first is NaN: a NaN score leaves the max alone and shows in the sum.
  Vec::F largest = Vec::all(state.max[head]);
  for (size_t j = 0; j < kAttentionBlock; j += kLanes)
    largest = Vec::max(Vec::load(p + j), largest);
  return Vec::largest(largest);
}

/// Scores of one head become probabilities; the sum of all lanes is theirs.
inline Vec::F exponentiate_head(const AttentionState& state, size_t head, float max) {
  float* p = state.p + head * kAttentionBlock;
  Vec::F sum = Vec::zero();
  for (size_t j = 0; j < kAttentionBlock; j += kLanes) {
    Vec::F value = exponential(Vec::sub(Vec::load(p + j), Vec::all(max)));
    sum = Vec::add(sum, value);
    if (state.args.round_probabilities) value = bf16_rounded(value);
    Vec::store(p + j, value);
  }
  return sum;
}

/// Scores of up to kLanes heads become probabilities; the heads' max and sum move on. One at a time they would wait for
/// their two reductions and the exponential of their own rescaling.
inline void normalise_heads(const AttentionState& state, size_t first, size_t heads, size_t count) {
  float largest[kLanes] = {};
  Vec::F sums[kLanes];
  for (Vec::F& sum : sums)
    sum = Vec::zero();
  for (size_t h = 0; h < heads; ++h) {
    largest[h] = largest_score(state, first + h, count);
    sums[h] = exponentiate_head(state, first + h, largest[h]);
  }
  const Vec::F max = Vec::load(largest);
  const Vec::F rescale = exponential(Vec::sub(Vec::load(state.max + first, heads), max));
  const Vec::F sum = Vec::add(Vec::mul(Vec::load(state.sum + first, heads), rescale), Vec::sums(sums));
  Vec::store(state.max + first, max, heads);
  Vec::store(state.sum + first, sum, heads);
  Vec::store(state.rescale + first, rescale, heads);
}

/// out[h, i] = out[h, i] * rescale[h] + sum_j p[h, j] row[j, i] for one tile of heads and four vectors of columns.
template <bool kIsWhole>
void value_tile(const AttentionState& state, size_t first_head, size_t first_column, size_t count) {
  constexpr size_t kVectors = 4;
  const AttentionArgs& args = state.args;
  const size_t rest = args.width - first_column;
  size_t offset[kVectors];
  size_t columns[kVectors];
  for (size_t v = 0; v < kVectors; ++v) {
    offset[v] = kIsWhole ? v * kLanes : smaller(v * kLanes, rest);
    columns[v] = kIsWhole ? kLanes : rest - offset[v];
  }
  size_t head[kTileHeads];
  Vec::F out[kTileHeads][kVectors];
  for (size_t h = 0; h < kTileHeads; ++h) {
    head[h] = smaller(first_head + h, args.heads - 1);
    const float* from = args.out + head[h] * args.width + first_column;
    const Vec::F rescale = Vec::all(state.rescale[head[h]]);
    for (size_t v = 0; v < kVectors; ++v)
      out[h][v] = Vec::mul(Vec::load(from + offset[v], columns[v]), rescale);
  }
  for (size_t j = 0; j < count; ++j) {
    const float* row = state.rows + j * state.stride + first_column;
    Vec::F value[kVectors];
    for (size_t v = 0; v < kVectors; ++v)
      value[v] = Vec::load(row + offset[v], columns[v]);
    for (size_t h = 0; h < kTileHeads; ++h) {
      const Vec::F p = Vec::all(state.p[head[h] * kAttentionBlock + j]);
      for (size_t v = 0; v < kVectors; ++v)
        out[h][v] = Vec::fma(p, value[v], out[h][v]);
    }
  }
  for (size_t h = 0; h < kTileHeads; ++h) {
    float* to = args.out + head[h] * args.width + first_column;
    for (size_t v = 0; v < kVectors; ++v)
      Vec::store(to + offset[v], out[h][v], columns[v]);
  }
}

/// Row `index` of window and global rows together.
struct ListedRow {
  RowFormat format;
  const std::byte* data;
};
inline ListedRow listed_row(const AttentionArgs& args, size_t index) {
  if (index < args.window.count) return {args.window.format, args.window.rows[index]};
  return {args.global.format, args.global.rows[index - args.window.count]};
}

/// Asks for row `index`, if there is one. Rows lie anywhere: only the list says where the next one is.
inline void prefetch_listed_row(const AttentionArgs& args, size_t index) {
  if (index >= args.window.count + args.global.count) return;
  const ListedRow row = listed_row(args, index);
  const size_t bytes = row_bytes(row.format, args.width);
  for (size_t at = 0; at < bytes; at += 64)
    _mm_prefetch(reinterpret_cast<const char*>(row.data + at), _MM_HINT_T1);
}

inline void attend_block(const AttentionState& state, size_t first, size_t count) {
  const AttentionArgs& args = state.args;
  for (size_t j = 0; j < count; ++j) {
    const ListedRow row = listed_row(args, first + j);
    decode_row(row.format, row.data, args.width, state.rows + j * state.stride);
  }
  if (args.width % kLanes == 0) {
    score_block<true>(state, count);
  } else {
    score_block<false>(state, count);
  }
  for (size_t h = 0; h < args.heads; h += kLanes)
    normalise_heads(state, h, smaller(kLanes, args.heads - h), count);
  constexpr size_t kColumns = 4 * kLanes;
  for (size_t i = 0; i < args.width; i += kColumns) {
    for (size_t h = 0; h < args.heads; h += kTileHeads) {
      if (i + kColumns <= args.width) {
        value_tile<true>(state, h, i, count);
      } else {
        value_tile<false>(state, h, i, count);
      }
    }
  }
}

/// Attention by `attend(state, first, count)`, which does one block of rows.
template <typename Attend>
void attend_in_blocks(const AttentionArgs& args, const Attend& attend) {
  const size_t total = args.window.count + args.global.count;
  for (size_t i = 0; i < args.heads * args.width; ++i)
    args.out[i] = 0;
  if (total == 0 || args.heads == 0 || args.width == 0) return;
  const AttentionState state(args);
  for (size_t h = 0; h < args.heads; ++h) {
    state.max[h] = -1e30F;
    state.sum[h] = 0;
  }
  for (size_t first = 0; first < total; first += kAttentionBlock) {
    attend(state, first, smaller(kAttentionBlock, total - first));
  }
  for (size_t h = 0; h < args.heads; ++h) {
    const Vec::F denominator = Vec::all(state.sum[h] + exponential(args.sink[h] - state.max[h]));
    float* out = args.out + h * args.width;
    for (size_t i = 0; i < args.width; i += kLanes) {
      Vec::store(out + i, Vec::div(Vec::load(out + i, args.width - i), denominator), args.width - i);
    }
  }
}

inline void sparse_attention_rows(const AttentionArgs& args) {
  attend_in_blocks(args, attend_block);
}

/// Index keys that are scored together, kKeyVectors vectors of them: with eight heads that is sixteen independent sums,
/// and ten loads for sixteen multiplications.
inline constexpr size_t kKeyVectors = 2;
inline constexpr size_t kKeys = kKeyVectors * kLanes;
static_assert(kKeys <= kIndexKeys);

/// Goes through the keys of all runs; behind the last one it stays there.
class KeyCursor {
 public:
  explicit KeyCursor(const IndexScoreArgs& args)
      : run_(args.runs), end_(args.runs + args.run_count), stride_(args.key_stride) {}

  TIDEPOOL_INLINE const std::byte* next() {
    while (run_ != end_ && used_ == run_->count) {
      ++run_;
      used_ = 0;
    }
    if (run_ != end_) key_ = run_->keys + used_++ * stride_;
    return key_;
  }

 private:
  const KeyRun* run_;
  const KeyRun* end_;
  size_t stride_;
  size_t used_ = 0;  ///< keys of the run
  const std::byte* key_ = nullptr;
};

inline size_t key_count(const IndexScoreArgs& args) {
  size_t count = 0;
  for (size_t run = 0; run < args.run_count; ++run)
    count += args.runs[run].count;
  return count;
}

/// kLanes index keys, one to a lane: keys[i * kKeys] is column i of all of them.
template <int... kNibble>
TIDEPOOL_INLINE void store_nibbles(Vec::Nibbles nibbles, Vec::F scale, float* keys) {
  (Vec::store(keys + kNibble * kKeys, Vec::mul(Vec::decode_nibble<kNibble>(nibbles), scale)), ...);
}
inline void transpose_fp4_keys(const std::byte* const* key, size_t width, float* keys) {
  for (size_t block = 0; block < width / 32; ++block) {
    float scales[kLanes];
    for (size_t l = 0; l < kLanes; ++l)
      scales[l] = e8m0_value(static_cast<uint8_t>(key[l][width / 2 + block]));
    const Vec::F scale = Vec::load(scales);
    for (size_t i = 32 * block; i < 32 * (block + 1); i += 8) {
      store_nibbles<0, 1, 2, 3, 4, 5, 6, 7>(Vec::gather_fp4(key, i / 2), scale, keys + i * kKeys);
    }
  }
}
/// The other formats hold keys in experiments only, so this one may be slow.
template <RowFormat kFormat>
void transpose_keys(const std::byte* const* key, size_t width, float* keys) {
  for (size_t l = 0; l < kLanes; ++l) {
    for (size_t column = 0; column < width; column += kLanes) {
      float values[kLanes];
      Vec::store(values, decode_columns<kFormat>(key[l], width, column));
      for (size_t i = 0; i < smaller(kLanes, width - column); ++i)
        keys[(column + i) * kKeys + l] = values[i];
    }
  }
}
inline void transpose_keys(RowFormat format, const std::byte* const* key, size_t width, float* keys) {
  switch (format) {
    case RowFormat::kFp8Block32: return transpose_keys<RowFormat::kFp8Block32>(key, width, keys);
    case RowFormat::kFp4Block16: return transpose_keys<RowFormat::kFp4Block16>(key, width, keys);
    case RowFormat::kFp4Block32: return transpose_fp4_keys(key, width, keys);
    case RowFormat::kFloat32: return transpose_keys<RowFormat::kFloat32>(key, width, keys);
  }
}

/// Adds weight * relu(dot) of one head to the score.
TIDEPOOL_INLINE Vec::F add_head(bool round, Vec::F weight, Vec::F dot, Vec::F score) {
  const Vec::F relu = Vec::max(Vec::zero(), dot);  // a NaN stays one
  const Vec::F term = round ? bf16_rounded(Vec::mul(bf16_rounded(relu), weight)) : Vec::mul(relu, weight);
  return Vec::add(score, term);
}

/// Adds the terms of the heads from `first_head` on to the scores of kKeys keys, in order.
template <size_t... kHead>
TIDEPOOL_INLINE void add_heads(const IndexScoreArgs& args, size_t first_head, Vec::F (&score)[kKeyVectors],
                               std::index_sequence<kHead...> /*heads*/) {
  const float* q = args.q + first_head * args.width;
  const float* weights = args.weights + first_head;
  Vec::F first[] = {(static_cast<void>(kHead), Vec::zero())...};
  Vec::F second[] = {(static_cast<void>(kHead), Vec::zero())...};
  for (size_t i = 0; i < args.width; ++i) {
    const Vec::F key0 = Vec::load(args.scratch + i * kKeys);
    const Vec::F key1 = Vec::load(args.scratch + i * kKeys + kLanes);
    const Vec::F values[] = {Vec::all(q[kHead * args.width + i])...};
    ((first[kHead] = Vec::fma(values[kHead], key0, first[kHead])), ...);
    ((second[kHead] = Vec::fma(values[kHead], key1, second[kHead])), ...);
  }
  ((score[0] = add_head(args.round, Vec::all(weights[kHead]), first[kHead], score[0])), ...);
  ((score[1] = add_head(args.round, Vec::all(weights[kHead]), second[kHead], score[1])), ...);
}

inline void index_scores_rows(const IndexScoreArgs& args) {
  constexpr size_t kHeads = 8;
  const size_t count = key_count(args);
  KeyCursor cursor(args);
  for (size_t j = 0; j < count; j += kKeys) {
    for (size_t v = 0; v < kKeyVectors; ++v) {
      const std::byte* key[kLanes];
      for (const std::byte*& one : key)
        one = cursor.next();
      transpose_keys(args.format, key, args.width, args.scratch + v * kLanes);
    }
    Vec::F score[kKeyVectors] = {Vec::zero(), Vec::zero()};
    size_t h = 0;
    for (; h + kHeads <= args.heads; h += kHeads)
      add_heads(args, h, score, std::make_index_sequence<kHeads>());
    for (; h < args.heads; ++h)
      add_heads(args, h, score, std::make_index_sequence<1>());
    for (size_t v = 0; v < kKeyVectors && j + v * kLanes < count; ++v) {
      const size_t first = j + v * kLanes;
      Vec::store(args.scores + first, args.round ? bf16_rounded(score[v]) : score[v], count - first);
    }
  }
}

}  // namespace
}  // namespace tidepool::kernels
