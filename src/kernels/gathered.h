#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

/// Products with rows that lie anywhere: what sparse attention, its derivatives and those of the indexer are made of.
/// (Inference attends to rows as the cache packs them: kernel_table.h.) Everything is noexcept and allocates nothing;
/// each sum takes its terms in one order that depends on nothing but its own inputs.
namespace tidepool::kernels {

/// Widths of rows are multiples of this (those of the published formats are).
inline constexpr size_t kGatheredLanes = 16;

/// A matrix of `columns` numbers for each row has its own rows this far apart.
[[nodiscard]] constexpr size_t gathered_stride(size_t columns) {
  return (columns + kGatheredLanes - 1) / kGatheredLanes * kGatheredLanes;
}

template <typename Real>
struct GatheredRows {
  const Real* const* rows = nullptr;
  size_t count = 0;
  size_t width = 0;
};

/// Index keys lie transposed, 32 to a panel [width, 32], zeros behind the last.
inline constexpr size_t kKeysPerPanel = 32;
[[nodiscard]] constexpr size_t key_panels(size_t keys) {
  return (keys + kKeysPerPanel - 1) / kKeysPerPanel;
}

/// scores[r, j] = sum_h weights[r, h] * relu(q[r, h] . key_j), heads in ascending order, every step rounded by itself:
/// where q . k is exact (both on the FP4 grid) these are the bits of the reference of KernelTable::index_scores.
template <typename Real>
struct PanelScoreArgs {
  const Real* q = nullptr;        ///< [rows, heads * width]
  const Real* weights = nullptr;  ///< [rows, heads]
  size_t rows = 0;
  size_t heads = 0;
  size_t width = 0;
  const Real* panels = nullptr;
  size_t panel_count = 0;
  Real* scores = nullptr;  ///< [rows, at least panel_count * 32]
  size_t scores_stride = 0;
};

/// One way to compute them. `stride` is gathered_stride(columns) throughout.
template <typename Real>
struct GatheredKernels {
  std::string_view name;

  /// out[j, c] = rows[j] . right[:, c]; right [width, stride] has zeros behind its columns, out [count, stride].
  void (*products)(const GatheredRows<Real>& rows, const Real* right, size_t columns, Real* out) noexcept;

  /// out[c, :] = sum_j weights[j, c] rows[j]; weights' rows are `weights_stride` apart, out [columns, width].
  void (*sums)(const GatheredRows<Real>& rows, const Real* weights, size_t weights_stride, size_t columns,
               Real* out) noexcept;

  /// rows[j] += sum_c weights[j, c] left[c, :]; weights [count, stride], left [columns, width]. No two rows overlap.
  void (*spread)(Real* const* rows, size_t count, size_t width, const Real* weights, size_t columns,
                 const Real* left) noexcept;

  /// p[j, c] becomes e^(scale * p[j, c] - log_sum[c]), where log_sum[c] = log(sum_j e^(scale * p[j, c]) + e^sink[c]) is
  /// returned too. p [count, stride], sink and log_sum [columns]. (docs/model.md 2.3)
  void (*softmax)(Real* p, size_t count, size_t columns, Real scale, const Real* sink, Real* log_sum) noexcept;

  /// Goes back: of each row of p, the first `columns` are scores s, the next ones derivatives g with respect to the
  /// probabilities e^(scale * s - log_sum). The row of `out` is scale * e^(..) * (g - delta), then e^(..).
  /// p and out [count, gathered_stride(2 * columns)], which may not overlap.
  void (*softmax_gradient)(const Real* p, size_t count, size_t columns, Real scale, const Real* log_sum,
                           const Real* delta, Real* out) noexcept;

  /// scores[j] = sum_c weights[c] * relu(p[j, c]); p [count, stride]. The relu of NaN is NaN, here and below.
  void (*relu_sums)(const Real* p, size_t count, size_t columns, const Real* weights, Real* scores) noexcept;

  /// Goes back: with g[j] the derivative by scores[j], p[j, c] becomes g[j] * weights[c] where it was positive, 0 where
  /// it was not (NaN stays NaN), and weight_gradient[c] += sum_j g[j] * relu(p[j, c]). p [count, stride], anything
  /// behind its columns.
  void (*relu_gradient)(Real* p, size_t count, size_t columns, const Real* weights, const Real* g,
                        Real* weight_gradient) noexcept;

  void (*panel_scores)(const PanelScoreArgs<Real>& args) noexcept;

  /// maxima[i, l] = the largest of x[(i * length + v) * 16 + l] for v in [0, length); maxima [segments, 16]. A NaN is
  /// never the largest.
  void (*lane_maxima)(const Real* x, size_t segments, size_t length, Real* maxima) noexcept;

  /// Writes the places of all x[i] >= least, ascending, and returns how many; room for `count`.
  size_t (*collect)(const Real* x, size_t count, Real least, uint32_t* places) noexcept;
};

/// The plain version, of float or double: scalar, terms in ascending order.
template <typename Real>
[[nodiscard]] const GatheredKernels<Real>& reference_gathered_kernels();

/// All versions this processor can run, best first; the last is the plain one.
[[nodiscard]] std::span<const GatheredKernels<float>* const> available_gathered_kernels();

/// The best there is.
template <typename Real>
[[nodiscard]] const GatheredKernels<Real>& gathered_kernels();

}  // namespace tidepool::kernels
