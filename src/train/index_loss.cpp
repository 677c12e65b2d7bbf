#include "train/index_loss.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "base/buffer.h"
#include "kernels/gathered.h"
#include "train/row_blocks.h"
#include "train/row_spread.h"

namespace tidepool {

namespace {

/// Rows whose derivatives wait for being spread over the keys: with 128 entries and 16 heads they are 1 MiB.
constexpr size_t kLossChunkRows = 128;

/// Scratch of one thread.
template <typename Real>
struct LossWorkspace {
  std::vector<const Real*> keys;
  Buffer<Real> right;
  Buffer<Real> products;
  Buffer<Real> sums;
  Buffer<Real> score_gradients;
};

template <typename Real>
std::vector<LossWorkspace<Real>> make_workspaces(const Tape<Real>& tape, const IndexLoss<Real>& loss) {
  const size_t stride = kernels::gathered_stride(loss.inputs.weights.cols());
  std::vector<LossWorkspace<Real>> work(tape.pool().thread_count());
  for (LossWorkspace<Real>& one : work) {
    one.keys.resize(loss.selection.entries.cols);
    one.right = Buffer<Real>(loss.inputs.keys.cols() * stride);
    one.products = Buffer<Real>(loss.selection.entries.cols * stride);
    one.sums = Buffer<Real>(loss.inputs.q.cols());
    one.score_gradients = Buffer<Real>(loss.selection.entries.cols);
  }
  return work;
}

/// products[j, h] = q_h . key_j of the row's selected entries.
template <typename Real>
kernels::GatheredRows<Real> multiply(const IndexLoss<Real>& loss, size_t row, LossWorkspace<Real>& work,
                                     Real* products) {
  const size_t heads = loss.inputs.weights.cols();
  const size_t width = loss.inputs.keys.cols();
  const std::span<const uint32_t> selected = loss.selection.of(row);
  for (size_t j = 0; j < selected.size(); ++j)
    work.keys[j] = loss.inputs.keys.data.row(selected[j]).data();
  const std::span<const Real> q = loss.inputs.q.data.row(row);
  for (size_t i = 0; i < width; ++i) {
    for (size_t h = 0; h < heads; ++h)
      work.right[i * kernels::gathered_stride(heads) + h] = q[h * width + i];
  }
  const kernels::GatheredRows<Real> keys{work.keys.data(), selected.size(), width};
  kernels::gathered_kernels<Real>().products(keys, work.right.data(), heads, products);
  return keys;
}

/// KL of one row; leaves softmax(s) - p in `gradient`.
template <typename Real>
Real row_loss(const IndexLoss<Real>& loss, size_t row, LossWorkspace<Real>& work, std::span<Real> gradient) {
  const size_t count = loss.selection.counts[row];
  const std::span<const Real> attention = loss.selection.attention.row(row).first(count);
  const Real total = std::accumulate(attention.begin(), attention.end(), Real{0});
  if (!(total > 0)) {
    std::ranges::fill(gradient, Real{0});
    return 0;
  }
  (void)multiply(loss, row, work, work.products.data());
  kernels::gathered_kernels<Real>().relu_sums(work.products.data(), count, loss.inputs.weights.cols(),
                                              loss.inputs.weights.data.row(row).data(), gradient.data());
  const Real max = *std::max_element(gradient.begin(), gradient.begin() + static_cast<std::ptrdiff_t>(count));
  Real sum = 0;
  for (size_t j = 0; j < count; ++j)
    sum += std::exp(gradient[j] - max);
  const Real log_sum = max + std::log(sum);
  Real divergence = 0;
  for (size_t j = 0; j < count; ++j) {
    const Real p = attention[j] / total;
    const Real log_q = gradient[j] - log_sum;
    if (p > 0) divergence += p * (std::log(p) - log_q);
    gradient[j] = std::exp(log_q) - p;
  }
  return divergence;
}

/// The gradients of one row's query and weights; those of its scores' products are left in `products`.
template <typename Real>
void go_back_row(const IndexLoss<Real>& loss, size_t row, std::span<const Real> gradient, LossWorkspace<Real>& work,
                 Real* products) {
  const size_t heads = loss.inputs.weights.cols();
  const size_t stride = kernels::gathered_stride(heads);
  const kernels::GatheredRows<Real> keys = multiply(loss, row, work, products);
  for (size_t j = 0; j < keys.count; ++j)
    work.score_gradients[j] = loss.scale * gradient[j];
  kernels::gathered_kernels<Real>().relu_gradient(products, keys.count, heads, loss.inputs.weights.data.row(row).data(),
                                                  work.score_gradients.data(),
                                                  loss.inputs.weights.grad.row(row).data());
  kernels::gathered_kernels<Real>().sums(keys, products, stride, heads, work.sums.data());
  const std::span<Real> q_gradient = loss.inputs.q.grad.row(row);
  for (size_t i = 0; i < q_gradient.size(); ++i)
    q_gradient[i] += work.sums[i];
}

template <typename Real>
void go_back(const Tape<Real>& tape, const IndexLoss<Real>& loss, const Span2d<Real>& gradients) {
  const size_t heads = loss.inputs.weights.cols();
  const size_t rows = loss.inputs.q.rows();
  const size_t chunk_rows = std::min(kLossChunkRows, rows);
  const size_t row_products = loss.selection.entries.cols * kernels::gathered_stride(heads);
  Buffer<Real> products(chunk_rows * row_products);
  std::vector<LossWorkspace<Real>> work = make_workspaces(tape, loss);
  for (size_t begin = 0; begin < rows; begin += chunk_rows) {
    const size_t end = std::min(rows, begin + chunk_rows);
    const auto products_of = [&](size_t row) { return products.data() + (row - begin) * row_products; };
    for_rows(tape, begin, end, [&](size_t row, size_t worker) {
      go_back_row<Real>(loss, row, gradients.row(row), work[worker], products_of(row));
    });
    std::vector<RowSpread<Real>> readers;
    readers.reserve(end - begin);
    for (size_t row = begin; row < end; ++row) {
      const std::span<const uint32_t> selected = loss.selection.of(row);
      readers.push_back(
          {{.list = selected.data(), .count = selected.size()}, products_of(row), loss.inputs.q.data.row(row).data()});
    }
    spread_rows<Real>(tape, readers, heads, loss.inputs.keys.grad);
  }
}

}  // namespace

template <typename Real>
double index_loss(Tape<Real>& tape, const IndexLoss<Real>& loss) {
  const size_t rows = loss.inputs.q.rows();
  const Span2d<Real> gradients(tape.template keep<Real>(rows * loss.selection.entries.cols).data(), rows,
                               loss.selection.entries.cols);
  std::vector<double> divergences(rows);
  std::vector<LossWorkspace<Real>> work = make_workspaces(tape, loss);
  for_rows(tape, 0, rows, [&](size_t row, size_t worker) {
    divergences[row] = static_cast<double>(row_loss<Real>(loss, row, work[worker], gradients.row(row)));
  });
  tape.on_backward([&tape, loss, gradients] { go_back(tape, loss, gradients); });
  return std::accumulate(divergences.begin(), divergences.end(), 0.0);
}

template double index_loss(Tape<float>&, const IndexLoss<float>&);
template double index_loss(Tape<double>&, const IndexLoss<double>&);

}  // namespace tidepool
