#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "formats/bf16.h"
#include "formats/matrix.h"
#include "formats/row_format.h"

/// Arithmetic on plain memory. Every entry is noexcept, allocates nothing and knows no model; shapes were checked by
/// the caller. Activations are binary32 everywhere: under the official numerics they hold values exact in bfloat16
/// (so a bf16 multiply would be exact), under `hp` they hold whatever the arithmetic gave.
///
/// Each result depends on its own inputs only, in a fixed order of summation per variant: never on the number of rows
/// in the call, the range of outputs asked for, or the thread. Two variants may differ by rounding.
namespace tidepool::kernels {

/// y[r, o] = sum_i weight[o, i] * x[r, i] for o in [out_begin, out_end), binary32 accumulation.
/// x [rows, weight.in], y [rows, weight.out] (only the asked columns are written).
struct LinearArgs {
  MatrixView weight;
  const float* x = nullptr;
  size_t x_stride = 0;
  size_t rows = 0;
  float* y = nullptr;
  size_t y_stride = 0;
  size_t out_begin = 0;
  size_t out_end = 0;
  /// What the table's pack_inputs made of these rows, or null.
  const std::byte* packed_x = nullptr;
};

/// Rows of x to be put in the order in which products with weights of `format` read them.
struct PackArgs {
  MatrixFormat format = MatrixFormat::kFloat32;
  const float* x = nullptr;
  size_t x_stride = 0;
  size_t in = 0;
  size_t rows = 0;
  size_t begin = 0;  ///< rows [begin, end) are packed
  size_t end = 0;
  std::byte* packed = nullptr;  ///< packed_bytes(format, rows, in) bytes, on a 64-byte boundary
};

/// Rows of the KV cache in one format, each found by its own pointer.
struct RowList {
  const std::byte* const* rows = nullptr;
  size_t count = 0;
  RowFormat format = RowFormat::kFloat32;
};

/// Attention of one position, all heads, over `window` then `global`; a row is key and value at once.
///   s[h, j] = scale * q[h] . row[j];  out[h] = sum_j p[h, j] row[j] / (sum_j p[h, j] + exp(sink[h] - max))
/// with p[h, j] = exp(s[h, j] - max). The rows are walked 64 at a time with a running max that starts at -1e30, and
/// `round_probabilities` rounds p to bfloat16 for the value product only. (docs/numerics.md, "Sparse attention")
/// A version may multiply in bfloat16 where that is exact (rounded probabilities, queries and rows it holds).
/// No rows at all gives zeros. q and out [heads, width]; sink [heads]; out may not overlap q.
/// `scratch` holds attention_scratch_floats(heads, width) values.
struct AttentionArgs {
  const float* q = nullptr;
  size_t heads = 0;
  size_t width = 0;
  RowList window;
  RowList global;
  const float* sink = nullptr;
  float scale = 0;
  bool round_probabilities = false;
  float* out = nullptr;
  float* scratch = nullptr;
};
inline constexpr size_t kAttentionBlock = 64;
/// Decoded rows are a cache line longer than their width: a power of two apart, they would share few sets of the cache.
inline constexpr size_t kAttentionRowPadding = 16;
[[nodiscard]] constexpr size_t attention_scratch_floats(size_t heads, size_t width) {
  // Decoded rows (in binary32, or in bfloat16 twice and some once more), scores and probabilities, three numbers a
  // head, queries in bfloat16, and sums.
  const size_t lanes = (heads + 15) / 16 * 16;
  return kAttentionBlock * (width + kAttentionRowPadding + 2 * lanes) + 8 * width + 3 * lanes + lanes * width * 3 / 2 +
         64;
}

/// Attention of one head, each query to all of the same keys, as in an encoder:
///   s[i, j] = q[i] . k[j];  out[i] = sum_j round(p[i, j]) v[j] / sum_j p[i, j],  p[i, j] = exp(scale (s[i, j] - max_j
///   s))
/// where `round` is to bfloat16. Queries, keys and values are exact in bfloat16; widths are multiples of 16.
struct DenseAttentionArgs {
  const float* q = nullptr;  ///< [queries, width]
  size_t q_stride = 0;
  size_t queries = 0;                 ///< at most kDenseQueries
  const std::byte* keys = nullptr;    ///< by pack_dense
  const std::byte* values = nullptr;  ///< likewise
  size_t count = 0;                   ///< of keys, at least 1
  size_t width = 0;
  float scale = 0;
  float* out = nullptr;  ///< [queries, width]; may be q
  size_t out_stride = 0;
  float* scratch = nullptr;  ///< dense_scratch_floats(count, width)
};
/// Queries whose scores with thousands of keys fit half of a second-level cache.
inline constexpr size_t kDenseQueries = 24;
/// Keys and values are packed by so many.
inline constexpr size_t kDenseKeys = 32;
[[nodiscard]] constexpr size_t dense_keys_padded(size_t count) {
  return (count + kDenseKeys - 1) / kDenseKeys * kDenseKeys;
}
/// From the scores of one query to those of the next: an odd number of cache lines, as powers of two would share few
/// sets of the cache.
[[nodiscard]] constexpr size_t dense_score_stride(size_t count) {
  return dense_keys_padded(count) + 16;
}
[[nodiscard]] constexpr size_t dense_scratch_floats(size_t count, size_t width) {
  return kDenseQueries * (dense_score_stride(count) + width / 2 + 1);
}

/// Keys and values of one head, [count, width] each, to be put in the order in which dense_attention reads them.
struct DensePackArgs {
  const float* keys = nullptr;
  const float* values = nullptr;
  size_t stride = 0;  ///< of both
  size_t count = 0;
  size_t width = 0;
  size_t tile_begin = 0;  ///< tiles of kDenseKeys [tile_begin, tile_end) are packed
  size_t tile_end = 0;
  /// 2 * width * dense_keys_padded(count) bytes each, on 64-byte boundaries; those of these tiles are written.
  std::byte* packed_keys = nullptr;
  std::byte* packed_values = nullptr;
};

/// Keys that lie one after the other.
struct KeyRun {
  const std::byte* keys = nullptr;
  size_t count = 0;
};

/// Scores of one query against the keys of all runs, in which they lie `key_stride` bytes apart:
///   score[j] = sum_h weight[h] * relu(q[h] . key[j]), heads in ascending order. (docs/model.md 2.4)
/// q [heads, width] already on the FP4 grid. `round` rounds to bfloat16 the relu, each product and the sum, as the
/// official reference does; the sum itself runs in binary32.
struct IndexScoreArgs {
  const float* q = nullptr;
  const float* weights = nullptr;
  size_t heads = 0;
  size_t width = 0;
  const KeyRun* runs = nullptr;
  size_t run_count = 0;
  size_t key_stride = 0;
  RowFormat format = RowFormat::kFp4Block32;
  bool round = false;
  float* scores = nullptr;   ///< of the keys of all runs, in their order
  float* scratch = nullptr;  ///< index_scratch_floats(width)
};
/// Keys that lie decoded in the scratch at a time, at most.
inline constexpr size_t kIndexKeys = 32;
[[nodiscard]] constexpr size_t index_scratch_floats(size_t width) {
  return kIndexKeys * width + 64;
}

/// Values above a threshold among x [begin, end), looked for a block of kAboveBlock at a time.
struct AboveArgs {
  const float* x = nullptr;
  size_t begin = 0;
  size_t end = 0;
  float above = 0;
  float* values = nullptr;     ///< [room]
  uint32_t* places = nullptr;  ///< [room]: of each value, its index in x
  size_t room = 0;             ///< at least kAboveBlock
};
inline constexpr size_t kAboveBlock = 64;
struct Above {
  size_t count = 0;  ///< values and places written
  size_t next = 0;   ///< the first index not looked at: `end`, or less where the room left is below kAboveBlock
};

/// Residual streams hc_expand can mix: twice what any release has.
inline constexpr size_t kHcStreamsMax = 8;

/// What the inputs of linears are: bfloat16 under the official numerics, anything under `hp`.
enum class LinearInputs : uint8_t {
  kExactInBf16,
  kFloat32,
};

/// One instruction set's kernels.
struct KernelTable {
  /// As `--isa` and logs spell it: "reference", "avx2", "avx512", "avx512bf16", "amx".
  std::string_view name;
  /// linear_fp8, linear_fp4 and linear_bf16 multiply in bfloat16: right only where x is exact in it. (VDPBF16PS and
  /// AMX. Their products also count subnormal operands as zero, and give zero for subnormal results: below 2^-126, that
  /// is. Outputs whose scaled weights would be subnormal or too large are computed in binary32.)
  bool needs_bf16_inputs = false;

  void (*linear_fp8)(const LinearArgs& args) noexcept;
  void (*linear_fp4)(const LinearArgs& args) noexcept;
  void (*linear_bf16)(const LinearArgs& args) noexcept;
  void (*linear_f32)(const LinearArgs& args) noexcept;

  /// What all rows of x take when packed; 0 where packing them beforehand would gain nothing. Null in tables that never
  /// do it, as is pack_inputs. Results are those of rows that were not packed.
  size_t (*packed_bytes)(MatrixFormat format, size_t rows, size_t in) noexcept = nullptr;
  void (*pack_inputs)(const PackArgs& args) noexcept = nullptr;

  void (*sparse_attention)(const AttentionArgs& args) noexcept;
  void (*index_scores)(const IndexScoreArgs& args) noexcept;
  /// Null in tables where two products and softmax_terms do it as well, as is pack_dense.
  void (*dense_attention)(const DenseAttentionArgs& args) noexcept = nullptr;
  void (*pack_dense)(const DensePackArgs& args) noexcept = nullptr;

  /// y[i] = x[i] * rsqrt(mean(x^2) + eps) * weight[i]; weight may be null (ones). y may be x.
  void (*rms_norm)(const float* x, const Bf16* weight, size_t count, float eps, float* y) noexcept;
  /// Puts each 32 consecutive values on the FP8 activation grid, in place. count is a multiple of 32. Where one of the
  /// 32 is infinite or NaN all become NaN, as their shared scale does.
  void (*quantise_fp8)(float* x, size_t count) noexcept;
  /// Rounds each value to bfloat16, in place.
  void (*round_bf16)(float* x, size_t count) noexcept;
  /// Rotates adjacent pairs (2i, 2i+1) by the angle whose cosine and sine are cos[i], sin[i]; `sin_sign` -1 turns back.
  /// x [2 * pairs].
  void (*rope)(float* x, const float* cos, const float* sin, size_t pairs, float sin_sign) noexcept;
  /// y = silu(min(gate, limit)) * clamp(up, +-limit) * weight; limit 0 means no clamp. y may be gate.
  void (*swiglu)(const float* gate, const float* up, size_t count, float limit, float weight, float* y) noexcept;
  /// The terms of a softmax, in place: x[i] becomes e^(scale * (x[i] - max x)); returns their sum. scale is positive.
  /// NaN is no maximum, so the terms beside it are numbers; the sum is NaN, as it is where the maximum is infinite.
  float (*softmax_terms)(float* x, size_t count, float scale) noexcept;
  /// Writes all x[i] > above and their places, in ascending order, while there is room. (NaN is above nothing.)
  Above (*collect_above)(const AboveArgs& args) noexcept;
  /// sum[i] += x[i].
  void (*add)(float* sum, const float* x, size_t count) noexcept;
  /// Collapse of the residual streams: y[i] = sum_j pre[j] * stream[j, i]. stream [streams, width].
  void (*hc_collapse)(const float* stream, const float* pre, size_t streams, size_t width, float* y) noexcept;
  /// Expansion, in place: stream'[k, i] = post[k] * y[i] + sum_j comb[j, k] * stream[j, i]; comb [streams, streams].
  /// streams is at most kHcStreamsMax.
  void (*hc_expand)(float* stream, const float* y, const float* post, const float* comb, size_t streams,
                    size_t width) noexcept;
};

/// The plain version: scalar, fixed order, the meaning of every other one. Runs anywhere.
[[nodiscard]] const KernelTable& reference_kernels();

/// All tables this build has and this processor can run, best first; the last is the reference.
[[nodiscard]] std::span<const KernelTable* const> available_kernels();

/// The table called `name` ("auto" = the best that takes `inputs`). Throws Error(kUnsupported) naming what this
/// processor can run, and for a table that cannot take `inputs`.
[[nodiscard]] const KernelTable& select_kernels(std::string_view name,
                                                LinearInputs inputs = LinearInputs::kExactInBf16);

}  // namespace tidepool::kernels
