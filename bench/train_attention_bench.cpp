// Attention of a training step, forward and back, at the shapes of a pocket model: rows a second, and what share of the
// machine's peak of binary32 multiply-adds its products reach. docs/bench.md explains the figures.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdio>
#include <exception>
#include <vector>

#include "bench/machine_limits.h"
#include "bench/measure.h"
#include "train/index_loss.h"
#include "train/sparse_attention.h"

namespace tidepool::bench {
namespace {

/// One layer over one sample.
struct Shape {
  size_t rows;
  size_t heads;
  size_t width;
  size_t window;
  size_t topk;   ///< 0: window only
  size_t ratio;  ///< tokens per entry
  size_t index_heads;
  size_t index_width;
};

constexpr Shape kShapes[] = {
    {4096, 8, 64, 128, 0, 1, 8, 32},   {4096, 8, 64, 64, 64, 2, 8, 32},  {16384, 8, 64, 128, 64, 2, 8, 32},
    {16384, 8, 64, 64, 128, 1, 8, 32}, {16384, 4, 64, 64, 32, 2, 8, 32},
};

/// Numbers that are the same in every run.
class Noise {
 public:
  float next() {
    state_ ^= state_ << 13U;
    state_ ^= state_ >> 7U;
    state_ ^= state_ << 17U;
    return std::ldexp(static_cast<float>(state_ >> 40U), -23) - 1;
  }

 private:
  uint64_t state_ = 0x9e3779b97f4a7c15U;
};

Value<float> random_value(Tape<float>& tape, Noise& noise, size_t rows, size_t cols) {
  const Value<float> value = tape.make(rows, cols);
  for (size_t i = 0; i < rows * cols; ++i)
    value.data.data[i] = noise.next();
  return value;
}

/// Products that a row's keys take part in: two forward, five back, each of 2 * heads * width operations.
double attention_operations(const Shape& shape, const std::vector<RowRange>& ranges,
                            const SelectedEntries<float>* selection) {
  double keys = 0;
  for (size_t row = 0; row < shape.rows; ++row) {
    keys += static_cast<double>(ranges[row].end - ranges[row].begin);
    if (selection != nullptr) keys += selection->counts[row];
  }
  return keys * 7 * 2 * static_cast<double>(shape.heads * shape.width);
}

struct Figures {
  double select_seconds = 0;
  double forward_seconds = 0;
  double backward_seconds = 0;  ///< of attention alone
  double loss_seconds = 0;      ///< of the indexer's loss, both ways
  double operations = 0;
  double score_operations = 0;
};

Figures measure(ThreadPool& pool, const Shape& shape, Tape<float>& tape) {
  tape.clear();
  Noise noise;
  TokenBatch batch;
  batch.segments = {{.begin = 0, .count = shape.rows}};
  const BatchRows rows = encoder_rows(batch);
  const EntryRows entries = entry_rows(batch, shape.ratio);
  std::vector<RowRange> ranges;
  ranges.reserve(shape.rows);
  for (size_t row = 0; row < shape.rows; ++row)
    ranges.push_back({row < shape.window ? 0 : row - shape.window + 1, row + 1});
  SparseAttention<float> attention;
  attention.q = random_value(tape, noise, shape.rows, shape.heads * shape.width);
  attention.local = random_value(tape, noise, shape.rows, shape.width);
  attention.local_rows = ranges;
  attention.sink = random_value(tape, noise, 1, shape.heads);

  Figures figures;
  IndexInputs<float> inputs;
  SelectedEntries<float> selection;
  if (shape.topk > 0) {
    attention.entries = random_value(tape, noise, entries.rows, shape.width);
    inputs = {random_value(tape, noise, shape.rows, shape.index_heads * shape.index_width),
              random_value(tape, noise, shape.rows, shape.index_heads),
              random_value(tape, noise, entries.rows, shape.index_width)};
    CandidateBlocks candidates;
    figures.select_seconds =
        seconds_of([&] { selection = select_entries(tape, inputs, rows, entries, {.topk = shape.topk}, candidates); });
    const auto visible = static_cast<double>(shape.rows) * static_cast<double>(entries.rows) / 2;
    figures.score_operations = visible * 2 * static_cast<double>(shape.index_heads * shape.index_width);
    attention.selection = &selection;
  }
  Value<float> out;
  figures.forward_seconds = seconds_of([&] { out = sparse_attention(tape, attention); });
  std::fill_n(out.grad.data, shape.rows * shape.heads * shape.width, 1.0F);
  figures.backward_seconds = seconds_of([&] { tape.backward(); });
  if (shape.topk > 0) {
    figures.loss_seconds = seconds_of([&] {
      (void)index_loss<float>(tape, {inputs, selection, 1.0F});
      tape.backward();
    });
  }
  figures.operations = attention_operations(shape, ranges, attention.selection);
  static_cast<void>(pool);
  return figures;
}

double peak_of(ThreadPool& pool) {
  return measure_peak_flops(pool, has_multiplier(Multiplier::kAvx512) ? Multiplier::kAvx512
                                  : has_multiplier(Multiplier::kAvx2) ? Multiplier::kAvx2
                                                                      : Multiplier::kScalar);
}

void report(ThreadPool& pool, const Shape& shape) {
  constexpr int kRepeats = 5;
  Tape<float> tape(pool, Tape<float>::Mode::kTraining);
  (void)measure(pool, shape, tape);  // memory is obtained
  std::vector<double> seconds;
  std::vector<double> shares;
  std::vector<double> score_shares;
  Figures last;
  for (int i = 0; i < kRepeats; ++i) {
    const double peak = peak_of(pool);
    last = measure(pool, shape, tape);
    seconds.push_back(last.forward_seconds + last.backward_seconds);
    shares.push_back(last.operations / seconds.back() / peak);
    if (shape.topk > 0) score_shares.push_back(last.score_operations / last.select_seconds / peak);
  }
  fmt::print(
      "{:6} rows, {} heads of {}, window {:3}, {:3} of {:5} entries: {:8.0f} rows/s, {:.2f} of the peak; "
      "forward {:.0f} ms, back {:.0f} ms, choosing {:.0f} ms ({:.2f} of the peak), index loss {:.0f} ms\n",
      shape.rows, shape.heads, shape.width, shape.window, shape.topk, shape.rows / shape.ratio,
      static_cast<double>(shape.rows) / median(seconds), median(shares), last.forward_seconds * 1e3,
      last.backward_seconds * 1e3, last.select_seconds * 1e3, score_shares.empty() ? 0.0 : median(score_shares),
      last.loss_seconds * 1e3);
}

}  // namespace
}  // namespace tidepool::bench

int main(int argc, char** argv) {
  try {
    CLI::App program{"attention of a training step: rows a second, and the share of the peak of multiply-adds"};
    size_t threads = 0;
    size_t only = 0;
    program.add_option("--threads", threads, "threads; 0 is one per physical core");
    program.add_option("--only", only, "one shape, counted from 1; 0 is all")
        ->check(CLI::Range(size_t{0}, std::size(tidepool::bench::kShapes)));
    CLI11_PARSE(program, argc, argv);
    tidepool::ThreadPool pool(threads);
    for (size_t i = 0; i < std::size(tidepool::bench::kShapes); ++i) {
      if (only == 0 || only == i + 1) tidepool::bench::report(pool, tidepool::bench::kShapes[i]);
    }
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "train_attention_bench: %s\n", error.what());
    return 1;
  }
}
