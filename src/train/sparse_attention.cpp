#include "train/sparse_attention.h"

#include <algorithm>
#include <cmath>

#include "base/buffer.h"
#include "base/check.h"
#include "kernels/gathered.h"
#include "train/row_blocks.h"
#include "train/row_spread.h"
#include "train/vector_math.h"

namespace tidepool {

namespace {

/// Rows whose derivatives of scores wait for being spread: with 192 keys and 8 heads they are 1.5 MiB.
constexpr size_t kAttentionChunkRows = 128;

/// An attention with its sizes; what closures hold.
template <typename Real>
struct AttentionProblem {
  SparseAttention<Real> args;
  SelectedEntries<Real> selection;
  bool has_selection = false;
  size_t heads = 0;
  size_t width = 0;
  size_t keys_max = 0;  ///< of any row
  Real scale = 0;

  [[nodiscard]] RowKeys local_keys(size_t row) const {
    const RowRange& range = args.local_rows[row];
    return {.begin = range.begin, .count = range.end - range.begin};
  }
  [[nodiscard]] RowKeys entry_keys(size_t row) const {
    if (!has_selection) return {};
    const std::span<const uint32_t> entries = selection.of(row);
    return {.list = entries.data(), .count = entries.size()};
  }
};

template <typename Real>
AttentionProblem<Real> make_problem(const SparseAttention<Real>& args) {
  AttentionProblem<Real> problem;
  problem.args = args;
  problem.heads = args.sink.cols();
  problem.width = args.local.cols();
  problem.has_selection = args.selection != nullptr;
  if (problem.has_selection) problem.selection = *args.selection;
  problem.scale = 1 / std::sqrt(static_cast<Real>(problem.width));
  TIDEPOOL_CHECK(args.q.cols() == problem.heads * problem.width && args.local_rows.size() == args.q.rows(),
                 "queries, heads and rows of an attention that do not fit");
  for (size_t row = 0; row < args.q.rows(); ++row)
    problem.keys_max = std::max(problem.keys_max, problem.local_keys(row).count + problem.entry_keys(row).count);
  return problem;
}

/// Scratch of one thread.
template <typename Real>
struct AttentionWorkspace {
  std::vector<const Real*> keys;
  Buffer<Real> right;   ///< queries, and gradients of results, transposed
  Buffer<Real> p;       ///< scores and probabilities
  Buffer<Real> result;  ///< of one row
  Buffer<Real> delta;   ///< of each head

  AttentionWorkspace(const AttentionProblem<Real>& problem, size_t columns)
      : keys(problem.keys_max),
        right(problem.width * kernels::gathered_stride(columns)),
        p(problem.keys_max * kernels::gathered_stride(columns)),
        result(problem.heads * problem.width),
        delta(problem.heads) {}
};

template <typename Real>
std::vector<AttentionWorkspace<Real>> make_workspaces(const Tape<Real>& tape, const AttentionProblem<Real>& problem,
                                                      size_t columns) {
  std::vector<AttentionWorkspace<Real>> result;
  result.reserve(tape.pool().thread_count());
  for (size_t i = 0; i < tape.pool().thread_count(); ++i)
    result.emplace_back(problem, columns);
  return result;
}

/// Finds the row's keys, the local ones first.
template <typename Real>
kernels::GatheredRows<Real> gather(const AttentionProblem<Real>& problem, size_t row, AttentionWorkspace<Real>& work) {
  const RowKeys local = problem.local_keys(row);
  const RowKeys entries = problem.entry_keys(row);
  for (size_t j = 0; j < local.count; ++j)
    work.keys[j] = problem.args.local.data.row(local[j]).data();
  for (size_t j = 0; j < entries.count; ++j)
    work.keys[local.count + j] = problem.args.entries.data.row(entries[j]).data();
  return {work.keys.data(), local.count + entries.count, problem.width};
}

/// right[:, first_column + h] = rows of `heads`.
template <typename Real>
void put_columns(const AttentionProblem<Real>& problem, std::span<const Real> heads, size_t columns,
                 size_t first_column, Real* right) {
  const size_t stride = kernels::gathered_stride(columns);
  for (size_t i = 0; i < problem.width; ++i) {
    for (size_t h = 0; h < problem.heads; ++h)
      right[i * stride + first_column + h] = heads[h * problem.width + i];
  }
}

/// Adds each entry's probabilities, summed over heads, to the selection's.
template <typename Real>
void collect_attention(const AttentionProblem<Real>& problem, size_t row, const Real* p) {
  if (!problem.has_selection || problem.selection.attention.data == nullptr) return;
  const size_t stride = kernels::gathered_stride(problem.heads);
  p += problem.local_keys(row).count * stride;
  for (size_t j = 0; j < problem.entry_keys(row).count; ++j) {
    Real sum = 0;
    for (size_t h = 0; h < problem.heads; ++h)
      sum += p[j * stride + h];
    problem.selection.attention.at(row, j) += sum;
  }
}

template <typename Real>
void attend_row(const AttentionProblem<Real>& problem, size_t row, AttentionWorkspace<Real>& work,
                std::span<Real> log_sum, std::span<Real> out) {
  const kernels::GatheredKernels<Real>& kernels = kernels::gathered_kernels<Real>();
  const kernels::GatheredRows<Real> keys = gather(problem, row, work);
  put_columns<Real>(problem, problem.args.q.data.row(row), problem.heads, 0, work.right.data());
  kernels.products(keys, work.right.data(), problem.heads, work.p.data());
  kernels.softmax(work.p.data(), keys.count, problem.heads, problem.scale, problem.args.sink.data.data, log_sum.data());
  kernels.sums(keys, work.p.data(), kernels::gathered_stride(problem.heads), problem.heads, out.data());
  collect_attention(problem, row, work.p.data());
}

/// Rows [begin, end), and what they leave for the gradients of their keys.
template <typename Real>
struct Chunk {
  size_t begin = 0;
  size_t end = 0;
  Span2d<Real> weights;  ///< of each row: [keys, stride(2 heads)], derivatives of scores, then probabilities
  Span2d<Real> left;     ///< of each row: queries, then gradients of results, [2 heads, width]
};

/// The derivatives of one row: its scores' are left in the chunk, its query's and sinks' are complete.
template <typename Real>
void go_back_row(const AttentionProblem<Real>& problem, size_t row, const Value<Real>& out,
                 std::span<const Real> log_sum, const Chunk<Real>& chunk, AttentionWorkspace<Real>& work,
                 std::span<Real> sink_gradient) {
  const kernels::GatheredKernels<Real>& kernels = kernels::gathered_kernels<Real>();
  const kernels::GatheredRows<Real> keys = gather(problem, row, work);
  const std::span<const Real> q = problem.args.q.data.row(row);
  const std::span<const Real> gradient = out.grad.row(row);
  const std::span<Real> left = chunk.left.row(row - chunk.begin);
  std::ranges::copy(q, left.begin());
  std::ranges::copy(gradient, left.begin() + static_cast<std::ptrdiff_t>(q.size()));
  put_columns<Real>(problem, q, 2 * problem.heads, 0, work.right.data());
  put_columns<Real>(problem, gradient, 2 * problem.heads, problem.heads, work.right.data());

  // delta = gradient . result for each head, which is sum_j p_j (gradient . key_j).
  for (size_t h = 0; h < problem.heads; ++h) {
    const size_t begin = h * problem.width;
    const Real delta =
        dot<Real>(gradient.subspan(begin, problem.width), out.data.row(row).subspan(begin, problem.width));
    work.delta[h] = delta;
    sink_gradient[h] = -delta * std::exp(problem.args.sink.data.data[h] - log_sum[h]);
  }
  Real* weights = chunk.weights.row(row - chunk.begin).data();
  kernels.products(keys, work.right.data(), 2 * problem.heads, work.p.data());
  kernels.softmax_gradient(work.p.data(), keys.count, problem.heads, problem.scale, log_sum.data(), work.delta.data(),
                           weights);
  if (!problem.args.q.wants_grad()) return;
  kernels.sums(keys, weights, kernels::gathered_stride(2 * problem.heads), problem.heads, work.result.data());
  const std::span<Real> q_gradient = problem.args.q.grad.row(row);
  for (size_t i = 0; i < q_gradient.size(); ++i)
    q_gradient[i] += work.result[i];
}

/// What the chunk's rows give to the gradients of their keys.
template <typename Real>
void spread_chunk(const Tape<Real>& tape, const AttentionProblem<Real>& problem, const Chunk<Real>& chunk) {
  const size_t stride = kernels::gathered_stride(2 * problem.heads);
  std::vector<RowSpread<Real>> local;
  std::vector<RowSpread<Real>> entries;
  local.reserve(chunk.end - chunk.begin);
  entries.reserve(chunk.end - chunk.begin);
  for (size_t row = chunk.begin; row < chunk.end; ++row) {
    const RowKeys keys = problem.local_keys(row);
    const Real* weights = chunk.weights.row(row - chunk.begin).data();
    const Real* left = chunk.left.row(row - chunk.begin).data();
    local.push_back({keys, weights, left});
    entries.push_back({problem.entry_keys(row), weights + keys.count * stride, left});
  }
  if (problem.args.local.wants_grad()) spread_rows<Real>(tape, local, 2 * problem.heads, problem.args.local.grad);
  if (problem.args.entries.wants_grad()) spread_rows<Real>(tape, entries, 2 * problem.heads, problem.args.entries.grad);
}

template <typename Real>
void go_back(const Tape<Real>& tape, const AttentionProblem<Real>& problem, const Value<Real>& out,
             const Span2d<Real>& log_sums) {
  const size_t rows = out.rows();
  const size_t columns = 2 * problem.heads;
  const size_t chunk_rows = std::min(kAttentionChunkRows, rows);
  Buffer<Real> weights(chunk_rows * problem.keys_max * kernels::gathered_stride(columns));
  Buffer<Real> left(chunk_rows * columns * problem.width);
  Buffer<Real> sink_gradients(rows * problem.heads);
  std::vector<AttentionWorkspace<Real>> work = make_workspaces(tape, problem, columns);
  for (size_t begin = 0; begin < rows; begin += chunk_rows) {
    const Chunk<Real> chunk{
        .begin = begin,
        .end = std::min(rows, begin + chunk_rows),
        .weights = {weights.data(), chunk_rows, problem.keys_max * kernels::gathered_stride(columns)},
        .left = {left.data(), chunk_rows, columns * problem.width}};
    for_rows(tape, chunk.begin, chunk.end, [&](size_t row, size_t worker) {
      go_back_row<Real>(problem, row, out, log_sums.row(row), chunk, work[worker],
                        sink_gradients.span().subspan(row * problem.heads, problem.heads));
    });
    spread_chunk(tape, problem, chunk);
  }
  if (!problem.args.sink.wants_grad()) return;
  for (size_t row = 0; row < rows; ++row) {
    for (size_t h = 0; h < problem.heads; ++h)
      problem.args.sink.grad.data[h] += sink_gradients[row * problem.heads + h];
  }
}

}  // namespace

template <typename Real>
Value<Real> sparse_attention(Tape<Real>& tape, const SparseAttention<Real>& attention) {
  const AttentionProblem<Real> problem = make_problem(attention);
  const size_t rows = attention.q.rows();
  const Value<Real> out = tape.make(rows, attention.q.cols());
  const Span2d<Real> log_sums(tape.template keep<Real>(rows * problem.heads).data(), rows, problem.heads);
  std::vector<AttentionWorkspace<Real>> work = make_workspaces(tape, problem, problem.heads);
  for_rows(tape, 0, rows, [&](size_t row, size_t worker) {
    attend_row<Real>(problem, row, work[worker], log_sums.row(row), out.data.row(row));
  });
  tape.on_backward([&tape, problem, out, log_sums] { go_back(tape, problem, out, log_sums); });
  return out;
}

template Value<float> sparse_attention(Tape<float>&, const SparseAttention<float>&);
template Value<double> sparse_attention(Tape<double>&, const SparseAttention<double>&);

}  // namespace tidepool
