#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "base/buffer.h"
#include "base/span2d.h"
#include "base/thread_pool.h"

/// Products of two matrices that are both computed, as training needs them. (Inference multiplies by matrices as they
/// lie in the checkpoint: kernel_table.h.)
namespace tidepool::kernels {

/// What the factors of a product may be rounded to before they are multiplied. Sums are binary32 either way.
enum class GemmPrecision : unsigned char {
  kFloat32,  ///< nothing
  kBf16,     ///< bfloat16, to nearest even, where the processor gains by it
};

/// A panel of one operand for the kernel to put into its order: up to `GemmKernel::panel_rows` rows of the left
/// operand, or `panel_cols` columns of the right one. Value (lane, step) is at from[lane * lane_stride +
/// step * step_stride], and one of the strides is 1.
struct GemmPackArgs {
  const float* from = nullptr;
  size_t lane_stride = 0;
  size_t step_stride = 0;
  size_t lanes = 0;
  size_t depth = 0;             ///< terms of each sum
  std::byte* packed = nullptr;  ///< on a 64-byte boundary; panel_bytes of it
};

/// c[rows, cols] (+)= the sums over terms [begin, begin + depth) of a panel of rows and a panel of columns.
struct GemmTileArgs {
  const std::byte* left = nullptr;
  const std::byte* right = nullptr;
  size_t panel_depth = 0;  ///< terms that the panels hold
  size_t begin = 0;        ///< a multiple of kGemmDepthBlock
  size_t depth = 0;
  float* c = nullptr;
  size_t c_stride = 0;
  size_t rows = 0;
  size_t cols = 0;
  bool adds = false;  ///< to what c holds
};

/// Terms that are added up in registers before they go to memory. Panels of this depth, a left and a right one, stay in
/// the first-level cache.
inline constexpr size_t kGemmDepthBlock = 512;

/// One way to multiply. Each sum takes its terms in ascending order, whatever else is computed beside it.
struct GemmKernel {
  std::string_view name;
  GemmPrecision precision = GemmPrecision::kFloat32;
  size_t panel_rows = 0;
  size_t panel_cols = 0;
  size_t (*left_bytes)(size_t depth) noexcept = nullptr;  ///< of a packed panel of rows
  size_t (*right_bytes)(size_t depth) noexcept = nullptr;
  void (*pack_left)(const GemmPackArgs& args) noexcept = nullptr;
  void (*pack_right)(const GemmPackArgs& args) noexcept = nullptr;
  void (*multiply)(const GemmTileArgs& args) noexcept = nullptr;
  /// What a thread does before and after a number of products; null for nothing.
  void (*begin)() noexcept = nullptr;
  void (*end)() noexcept = nullptr;
};

/// All kernels this build has and this processor can run, best first; the last is the scalar one.
[[nodiscard]] std::span<const GemmKernel* const> available_gemm_kernels();
/// The best that rounds no more than `precision` allows.
[[nodiscard]] const GemmKernel& select_gemm_kernel(GemmPrecision precision);
/// The code for tiles on emulated ones, for tests alone. Null without AVX-512.
[[nodiscard]] const GemmKernel* emulated_amx_gemm_kernel();

/// A matrix as a factor: itself or transposed.
struct GemmOperand {
  Span2d<const float> matrix;
  bool is_transposed = false;

  [[nodiscard]] size_t rows() const { return is_transposed ? matrix.cols : matrix.rows; }
  [[nodiscard]] size_t cols() const { return is_transposed ? matrix.rows : matrix.cols; }
};

/// c = a b, or c += a b; a [m, k], b [k, n], c [m, n], which may not overlap a or b.
struct GemmJob {
  GemmOperand a;
  GemmOperand b;
  Span2d<float> c;
  bool adds = false;
};

/// Memory for packed operands, kept from product to product.
class GemmWorkspace {
 public:
  [[nodiscard]] std::byte* take(size_t bytes) {
    if (bytes > memory_.size()) memory_ = Buffer<std::byte>(bytes + bytes / 4);
    return memory_.data();
  }

 private:
  Buffer<std::byte> memory_;
};

/// All jobs in one go over all threads. Work is split over outputs and never over a sum, so results depend neither on
/// the number of threads nor on the other jobs. No job may read or write what another one writes.
void multiply_all(ThreadPool& pool, const GemmKernel& kernel, std::span<const GemmJob> jobs, GemmWorkspace& workspace);

}  // namespace tidepool::kernels
