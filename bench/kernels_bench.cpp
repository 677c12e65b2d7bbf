// Kernels against the limits of this machine.
//
// Each benchmark first checks its result against the reference table, then runs its kernel and the limit it is judged
// by turn about, and reports medians: the rate, the limit, and the share. Shapes are those of the released model; the
// sets of weights are far larger than the caches, so N = 1 means weights from memory, as in decoding.
//   kernels_bench [--benchmark_filter=avx512/gemv]      TIDEPOOL_THREADS=n sets the number of threads

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/buffer.h"
#include "bench/machine_limits.h"
#include "bench/measure.h"
#include "formats/matrix.h"
#include "formats/row_format.h"
#include "kernels/runtime.h"

namespace tidepool::bench {
namespace {

constexpr size_t kSetBytes = size_t{640} << 20;
constexpr int kRepeats = 9;

/// Everything the benchmarks share: one set of bytes that serves as weights of any format. As bfloat16 they are
/// +-0.5 to +-2, as E4M3 no byte is NaN.
struct Fixture {
  ThreadPool pool;
  Buffer<std::byte> codes;
  Buffer<uint8_t> scales;
  Buffer<float> x;
  Buffer<float> y;

  explicit Fixture(size_t threads)
      : pool(threads), codes(kSetBytes), scales(kSetBytes / 16), x(size_t{256} * 8192), y(size_t{256} * 16384) {
    const size_t parts = 64;
    const size_t step = codes.size() / parts;
    pool.run(parts, [&](size_t part, size_t /*worker*/) {
      uint64_t state = part * 0x9e3779b97f4a7c15U + 1;
      for (size_t i = part * step; i < (part + 1) * step; i += 8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        const uint64_t word = (state & 0x80ef80ef80ef80efU) | 0x3f003f003f003f00U;
        std::memcpy(codes.data() + i, &word, sizeof(word));
      }
    });
    std::fill_n(scales.data(), scales.size(), uint8_t{121});
    for (size_t i = 0; i < x.size(); ++i)
      x[i] = std::sin(static_cast<float>(i % 10007));
  }
};

Fixture& fixture() {
  static Fixture shared([] {
    const char* threads = std::getenv("TIDEPOOL_THREADS");
    return threads != nullptr ? static_cast<size_t>(std::strtoul(threads, nullptr, 10)) : size_t{0};
  }());
  return shared;
}

struct Shape {
  const char* name;
  MatrixFormat format;
  size_t out;
  size_t in;
};
constexpr Shape kExpertUp = {"fp4_expert_2304x5120", MatrixFormat::kFp4Block32, 2304, 5120};
constexpr Shape kExpertDown = {"fp4_expert_5120x2304", MatrixFormat::kFp4Block32, 5120, 2304};
constexpr Shape kDense = {"fp8_dense_5120x8192", MatrixFormat::kFp8Tile32, 5120, 8192};
constexpr Shape kHead = {"bf16_head_16384x5120", MatrixFormat::kBf16, 16384, 5120};

size_t scale_bytes(const Shape& shape) {
  switch (shape.format) {
    case MatrixFormat::kFp8Tile32: return shape.out / 32 * (shape.in / 32);
    case MatrixFormat::kFp4Block32: return shape.out * (shape.in / 32);
    case MatrixFormat::kBf16:
    case MatrixFormat::kFloat32: return 0;
  }
  return 0;
}

/// As many matrices of a shape as the set holds, one after the other.
std::vector<MatrixView> matrices_of(Fixture& shared, const Shape& shape) {
  const size_t bytes = shape.out * matrix_row_bytes(shape.format, shape.in);
  std::vector<MatrixView> result;
  for (size_t i = 0; (i + 1) * bytes <= shared.codes.size(); ++i) {
    result.push_back({.format = shape.format,
                      .out = shape.out,
                      .in = shape.in,
                      .data = shared.codes.data() + i * bytes,
                      .scales = shared.scales.data() + i * scale_bytes(shape)});
  }
  return result;
}

void run_linear(Fixture& shared, const kernels::KernelTable& table, const MatrixView& weight, size_t rows) {
  linear({shared.pool, table}, weight, Span2d<const float>(shared.x.data(), rows, weight.in),
         Span2d<float>(shared.y.data(), rows, weight.out));
}

/// The first rows of a matrix by `table` and by the reference; false ends the benchmark with an error.
bool is_right(benchmark::State& state, Fixture& shared, const kernels::KernelTable& table, MatrixView weight) {
  weight.out = 32;
  run_linear(shared, kernels::reference_kernels(), weight, 4);
  const std::vector<float> expected(shared.y.data(), shared.y.data() + size_t{4} * 32);
  run_linear(shared, table, weight, 4);
  float largest = 0;
  for (const float value : expected)
    largest = std::max(largest, std::fabs(value));
  for (size_t i = 0; i < expected.size(); ++i) {
    if (std::fabs(shared.y[i] - expected[i]) <= 1e-3F * largest) continue;
    state.SkipWithError("the result differs from the reference");
    return false;
  }
  return true;
}

/// N = 1: bytes of weights and scales a second, against reading the same memory.
void gemv(benchmark::State& state, const kernels::KernelTable& table, const Shape& shape) {
  Fixture& shared = fixture();
  const std::vector<MatrixView> matrices = matrices_of(shared, shape);
  if (!is_right(state, shared, table, matrices.front())) return;
  const size_t bytes = shape.out * matrix_row_bytes(shape.format, shape.in) + scale_bytes(shape);
  std::vector<double> rates;
  std::vector<double> limits;
  std::vector<double> shares;
  for (auto _ : state) {
    limits.push_back(measure_read_bandwidth(shared.pool, shared.codes.span()));
    const double seconds = seconds_of([&] {
      for (const MatrixView& matrix : matrices)
        run_linear(shared, table, matrix, 1);
    });
    state.SetIterationTime(seconds);
    rates.push_back(static_cast<double>(matrices.size() * bytes) / seconds);
    shares.push_back(rates.back() / limits.back());
  }
  state.counters["GB/s"] = median(rates) / 1e9;
  state.counters["read_GB/s"] = median(limits) / 1e9;
  state.counters["share"] = median(shares);
}

/// Many rows: operations a second, against fused multiply-adds on registers.
void gemm(benchmark::State& state, const kernels::KernelTable& table, const Shape& shape, size_t rows) {
  Fixture& shared = fixture();
  const MatrixView matrix = matrices_of(shared, shape).front();
  if (!is_right(state, shared, table, matrix)) return;
  std::vector<double> rates;
  std::vector<double> shares;
  for (auto _ : state) {
    const double limit = measure_peak_flops(shared.pool, table.name);
    const double seconds = seconds_of([&] { run_linear(shared, table, matrix, rows); });
    state.SetIterationTime(seconds);
    rates.push_back(2.0 * static_cast<double>(rows * shape.out * shape.in) / seconds);
    shares.push_back(rates.back() / limit);
  }
  state.counters["GFLOP/s"] = median(rates) / 1e9;
  state.counters["share"] = median(shares);
}

/// `count` rows of one format, one after the other.
Buffer<std::byte> packed_rows(const Fixture& shared, RowFormat format, size_t width, size_t count) {
  const size_t bytes = row_bytes(format, width);
  Buffer<std::byte> rows(count * bytes);
  for (size_t i = 0; i < count; ++i) {
    pack_row(format, shared.x.span().subspan(i % 4096 * 101, width), rows.span().subspan(i * bytes, bytes));
  }
  return rows;
}

/// Attention of one position a thread: 64 heads, 128 window and 512 global rows of 512.
void attention(benchmark::State& state, const kernels::KernelTable& table) {
  Fixture& shared = fixture();
  constexpr size_t kHeads = 64;
  constexpr size_t kWidth = 512;
  constexpr size_t kWindow = 128;
  constexpr size_t kGlobal = 512;
  const Buffer<std::byte> window_rows = packed_rows(shared, RowFormat::kFp8Block32, kWidth, kWindow);
  const Buffer<std::byte> global_rows = packed_rows(shared, RowFormat::kFp4Block16, kWidth, kGlobal);
  std::vector<const std::byte*> window;
  std::vector<const std::byte*> global;
  for (size_t i = 0; i < kWindow; ++i)
    window.push_back(window_rows.data() + i * row_bytes(RowFormat::kFp8Block32, kWidth));
  for (size_t i = 0; i < kGlobal; ++i)
    global.push_back(global_rows.data() + i * row_bytes(RowFormat::kFp4Block16, kWidth));
  const size_t threads = shared.pool.thread_count();
  const std::vector<float> sink(kHeads, 0.0F);
  std::vector<Buffer<float>> scratch;
  for (size_t i = 0; i < threads; ++i)
    scratch.emplace_back(kernels::attention_scratch_floats(kHeads, kWidth));
  std::vector<double> rates;
  std::vector<double> shares;
  for (auto _ : state) {
    const double limit = measure_peak_flops(shared.pool, table.name);
    const double seconds = seconds_of([&] {
      shared.pool.run(threads, [&](size_t position, size_t worker) {
        table.sparse_attention({.q = shared.x.data() + position * kHeads * kWidth,
                                .heads = kHeads,
                                .width = kWidth,
                                .window = {.rows = window.data(), .count = kWindow, .format = RowFormat::kFp8Block32},
                                .global = {.rows = global.data(), .count = kGlobal, .format = RowFormat::kFp4Block16},
                                .sink = sink.data(),
                                .scale = 0.044F,
                                .round_probabilities = true,
                                .out = shared.y.data() + position * kHeads * kWidth,
                                .scratch = scratch[worker].data()});
      });
    });
    state.SetIterationTime(seconds);
    rates.push_back(4.0 * static_cast<double>(threads * kHeads * kWidth * (kWindow + kGlobal)) / seconds);
    shares.push_back(rates.back() / limit);
  }
  state.counters["GFLOP/s"] = median(rates) / 1e9;
  state.counters["share"] = median(shares);
}

/// Index scores of one position: 32 heads of 128 against 65,536 keys, split over the threads.
void index_scores(benchmark::State& state, const kernels::KernelTable& table) {
  Fixture& shared = fixture();
  constexpr size_t kHeads = 32;
  constexpr size_t kWidth = 128;
  constexpr size_t kPart = 2048;
  const size_t parts = table.name == "reference" ? 2 : 32;
  const size_t stride = row_bytes(RowFormat::kFp4Block32, kWidth);
  const Buffer<std::byte> keys = packed_rows(shared, RowFormat::kFp4Block32, kWidth, parts * kPart);
  std::vector<Buffer<float>> scratch;
  for (size_t i = 0; i < shared.pool.thread_count(); ++i)
    scratch.emplace_back(kernels::index_scratch_floats(kWidth));
  std::vector<double> rates;
  std::vector<double> shares;
  for (auto _ : state) {
    const double limit = measure_peak_flops(shared.pool, table.name);
    const double seconds = seconds_of([&] {
      shared.pool.run(parts, [&](size_t part, size_t worker) {
        table.index_scores({.q = shared.x.data(),
                            .weights = shared.x.data(),
                            .heads = kHeads,
                            .width = kWidth,
                            .keys = keys.data() + part * kPart * stride,
                            .key_stride = stride,
                            .count = kPart,
                            .format = RowFormat::kFp4Block32,
                            .round = true,
                            .scores = shared.y.data() + part * kPart,
                            .scratch = scratch[worker].data()});
      });
    });
    state.SetIterationTime(seconds);
    rates.push_back(2.0 * static_cast<double>(parts * kPart * kHeads * kWidth) / seconds);
    shares.push_back(rates.back() / limit);
  }
  state.counters["GFLOP/s"] = median(rates) / 1e9;
  state.counters["share"] = median(shares);
}

template <typename Body>
void add([[maybe_unused]] const std::string& name, [[maybe_unused]] int repeats, [[maybe_unused]] Body body) {
#ifndef __clang_analyzer__  // it takes what the library's registry owns for a leak
  benchmark::RegisterBenchmark(name.c_str(), body)->UseManualTime()->Iterations(repeats)->Unit(benchmark::kMillisecond);
#endif
}

void register_table(const kernels::KernelTable& table) {
  const std::string prefix = std::string(table.name) + "/";
  // The reference needs half a second for one matrix and is here for scale only.
  const bool is_reference = &table == &kernels::reference_kernels();
  for (const Shape& shape : {kExpertUp, kExpertDown, kDense, kHead}) {
    if (!is_reference) {
      add(prefix + "gemv/" + shape.name, kRepeats,
          [&table, shape](benchmark::State& state) { gemv(state, table, shape); });
    }
    for (const size_t rows : {16U, 256U}) {
      if (is_reference && (rows > 16 || shape.name != kExpertUp.name)) continue;
      add(prefix + "gemm_" + std::to_string(rows) + "/" + shape.name, rows > 16 || is_reference ? 3 : kRepeats,
          [&table, shape, rows](benchmark::State& state) { gemm(state, table, shape, rows); });
    }
  }
  add(prefix + "attention_64x640x512", is_reference ? 3 : kRepeats,
      [&table](benchmark::State& state) { attention(state, table); });
  add(prefix + "index_scores_32x128", is_reference ? 3 : kRepeats,
      [&table](benchmark::State& state) { index_scores(state, table); });
}

}  // namespace
}  // namespace tidepool::bench

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  for (const tidepool::kernels::KernelTable* table : tidepool::kernels::available_kernels()) {
    tidepool::bench::register_table(*table);
  }
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
