#include "kernels/gemm.h"

#include <algorithm>
#include <vector>

#include "base/check.h"

namespace tidepool::kernels {
namespace {

/// Panels a side of what is multiplied as one task, at most: their packed operands, 512 terms deep, take about half of
/// a second-level cache of 1 MiB, and a task is long beside what it costs to hand it out.
constexpr size_t kBlockPanels = 8;
/// Tasks a thread, at least, so that threads of unequal speed end together.
constexpr size_t kTasksPerThread = 4;

size_t parts(size_t count, size_t size) {
  return (count + size - 1) / size;
}

/// A panel of one operand of one job.
struct PackTask {
  GemmPackArgs args;
  bool is_left;
  size_t begin;  ///< of the packed panel in the workspace
};

/// Panels of rows and of columns.
struct Block {
  size_t rows = 0;
  size_t cols = 0;
};

/// A block of outputs of one job.
struct MultiplyTask {
  const GemmJob* job = nullptr;
  size_t left_begin = 0;  ///< where the operand's first panel is in the workspace
  size_t right_begin = 0;
  Block first;
  Block size;
};

GemmPackArgs panel_args(const GemmOperand& operand, bool lanes_are_rows, size_t first, size_t lanes, size_t depth) {
  const size_t stride = operand.matrix.stride;
  const bool lanes_are_far = lanes_are_rows != operand.is_transposed;
  return {.from = operand.matrix.data + first * (lanes_are_far ? stride : 1),
          .lane_stride = lanes_are_far ? stride : 1,
          .step_stride = lanes_are_far ? 1 : stride,
          .lanes = lanes,
          .depth = depth};
}

void check_shapes(const GemmJob& job) {
  TIDEPOOL_CHECK(job.a.cols() == job.b.rows(), "a product of matrices that do not fit");
  TIDEPOOL_CHECK(job.c.rows == job.a.rows() && job.c.cols == job.b.cols(), "a product into a matrix of another shape");
}

void clear(const Span2d<float>& c) {
  for (size_t row = 0; row < c.rows; ++row)
    std::ranges::fill(c.row(row), 0.0F);
}

void multiply_block(const GemmKernel& kernel, const MultiplyTask& task, const std::byte* memory) {
  const GemmJob& job = *task.job;
  const size_t depth = job.a.cols();
  const size_t left_bytes = kernel.left_bytes(depth);
  const size_t right_bytes = kernel.right_bytes(depth);
  const size_t row_end = std::min(task.first.rows + task.size.rows, parts(job.c.rows, kernel.panel_rows));
  const size_t col_end = std::min(task.first.cols + task.size.cols, parts(job.c.cols, kernel.panel_cols));
  for (size_t begin = 0; begin < depth; begin += kGemmDepthBlock) {
    for (size_t col = task.first.cols; col < col_end; ++col) {
      for (size_t row = task.first.rows; row < row_end; ++row) {
        const size_t first_row = row * kernel.panel_rows;
        const size_t first_col = col * kernel.panel_cols;
        kernel.multiply({.left = memory + task.left_begin + row * left_bytes,
                         .right = memory + task.right_begin + col * right_bytes,
                         .panel_depth = depth,
                         .begin = begin,
                         .depth = std::min(kGemmDepthBlock, depth - begin),
                         .c = job.c.data + first_row * job.c.stride + first_col,
                         .c_stride = job.c.stride,
                         .rows = std::min(kernel.panel_rows, job.c.rows - first_row),
                         .cols = std::min(kernel.panel_cols, job.c.cols - first_col),
                         .adds = job.adds || begin > 0});
      }
    }
  }
}

size_t block_count(const GemmKernel& kernel, std::span<const GemmJob> jobs, Block size) {
  size_t count = 0;
  for (const GemmJob& job : jobs)
    count += parts(job.c.rows, kernel.panel_rows * size.rows) * parts(job.c.cols, kernel.panel_cols * size.cols);
  return count;
}

/// As large as leaves tasks enough for all threads.
Block block_size(const GemmKernel& kernel, std::span<const GemmJob> jobs, size_t threads) {
  Block size{kBlockPanels, kBlockPanels};
  while (size.rows * size.cols > 1 && block_count(kernel, jobs, size) < kTasksPerThread * threads) {
    size_t& larger = size.rows > size.cols ? size.rows : size.cols;
    larger /= 2;
  }
  return size;
}

/// What all jobs together come down to, and the memory that their packed operands need.
struct Plan {
  std::vector<PackTask> packing;
  std::vector<MultiplyTask> products;
  size_t bytes = 0;
};

/// Adds the panels of one operand; returns where they begin in the workspace.
size_t add_panels(const GemmKernel& kernel, const GemmOperand& operand, bool is_left, Plan& plan) {
  const size_t lanes = is_left ? operand.rows() : operand.cols();
  const size_t depth = is_left ? operand.cols() : operand.rows();
  const size_t panel = is_left ? kernel.panel_rows : kernel.panel_cols;
  const size_t begin = plan.bytes;
  for (size_t first = 0; first < lanes; first += panel) {
    plan.packing.push_back(
        {panel_args(operand, is_left, first, std::min(panel, lanes - first), depth), is_left, plan.bytes});
    plan.bytes += is_left ? kernel.left_bytes(depth) : kernel.right_bytes(depth);
  }
  return begin;
}

/// All blocks of the job that `task` is of.
void add_products(const GemmKernel& kernel, MultiplyTask task, Plan& plan) {
  const GemmJob& job = *task.job;
  for (size_t row = 0; row < parts(job.c.rows, kernel.panel_rows); row += task.size.rows) {
    for (size_t col = 0; col < parts(job.c.cols, kernel.panel_cols); col += task.size.cols) {
      task.first = {row, col};
      plan.products.push_back(task);
    }
  }
}

}  // namespace

void multiply_all(ThreadPool& pool, const GemmKernel& kernel, std::span<const GemmJob> jobs, GemmWorkspace& workspace) {
  const Block size = block_size(kernel, jobs, pool.thread_count());
  Plan plan;
  for (const GemmJob& job : jobs) {
    check_shapes(job);
    if (job.a.cols() == 0 && !job.adds) clear(job.c);
    if (job.a.cols() == 0) continue;
    const size_t left = add_panels(kernel, job.a, true, plan);
    const size_t right = add_panels(kernel, job.b, false, plan);
    add_products(kernel, {&job, left, right, {}, size}, plan);
  }
  std::byte* const memory = workspace.take(plan.bytes);
  pool.run(plan.packing.size(), [&](size_t index, size_t) {
    PackTask task = plan.packing[index];
    task.args.packed = memory + task.begin;
    task.is_left ? kernel.pack_left(task.args) : kernel.pack_right(task.args);
  });
  pool.run(plan.products.size(), [&](size_t index, size_t) {
    if (kernel.begin != nullptr) kernel.begin();
    multiply_block(kernel, plan.products[index], memory);
    if (kernel.end != nullptr) kernel.end();
  });
}

}  // namespace tidepool::kernels
