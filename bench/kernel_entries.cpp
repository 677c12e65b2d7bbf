#include <fmt/format.h>

#include <cmath>
#include <memory>
#include <vector>

#include "bench/suite_internal.h"
#include "formats/matrix.h"
#include "formats/row_format.h"
#include "kernels/top_k.h"
#include "kv/kv_layout.h"
#include "model/hyper_connection.h"

namespace tidepool::bench {

namespace {

constexpr size_t kHidden = 5120;
constexpr size_t kInner = 2304;

/// A shape of weights and the bytes it takes.
struct Shape {
  MatrixFormat format;
  size_t out;
  size_t in;

  [[nodiscard]] size_t code_bytes() const { return out * matrix_row_bytes(format, in); }
  [[nodiscard]] size_t scale_bytes() const {
    switch (format) {
      case MatrixFormat::kFp8Tile32: return (out + 31) / 32 * ((in + 31) / 32);
      case MatrixFormat::kFp4Block32: return out * (in / 32);
      case MatrixFormat::kBf16:
      case MatrixFormat::kFloat32: return 0;
    }
    return 0;
  }
};

/// Takes matrices from the random bytes, with scales of their own: FP4 ones, which are experts, from anywhere, others
/// one after the other, starting over at the end. Codes of all formats are ordinary numbers; scales are a constant
/// 2^-4.
class MatrixSource {
 public:
  explicit MatrixSource(std::span<const std::byte> bytes) : bytes_(bytes), scales_(kScaleBytes, uint8_t{123}) {}

  MatrixView next(const Shape& shape) {
    const size_t size = (shape.code_bytes() + 63) / 64 * 64;
    if (shape.format == MatrixFormat::kFp4Block32) {
      constexpr uint64_t kFactor = 6364136223846793005U;  // Knuth's, for 64 bits
      random_ = random_ * kFactor + 1442695040888963407U;
      at_ = (random_ >> 33U) % (bytes_.size() / size) * size;
    }
    if (at_ + size > bytes_.size()) at_ = 0;
    if (scales_at_ + shape.scale_bytes() > scales_.size()) scales_at_ = 0;
    const MatrixView view{shape.format, shape.out, shape.in, bytes_.data() + at_, scales_.data() + scales_at_};
    at_ += size;
    scales_at_ += shape.scale_bytes();
    return view;
  }

 private:
  static constexpr size_t kScaleBytes = size_t{64} << 20;  // of a round of experts, so that none is in a cache
  std::span<const std::byte> bytes_;
  std::vector<uint8_t> scales_;
  size_t at_ = 0;
  size_t scales_at_ = 0;
  uint64_t random_ = 1;
};

Buffer<float> test_vector(size_t count) {
  Buffer<float> x(count);
  for (size_t i = 0; i < count; ++i)
    x[i] = std::round(std::sin(static_cast<float>(i % 10007)) * 8.0F) / 8.0F;
  return x;
}

/// Streams through matrices of `shapes` by turns, one row of input each, until more than the caches hold has been read.
Result measure_gemv(const Workbench& bench, const std::vector<Shape>& shapes, const std::string& description) {
  constexpr size_t kBytesPerRound = size_t{800} << 20;
  MatrixSource source(bench.bytes);
  const Buffer<float> x = test_vector(16384);
  Buffer<float> y(131072);
  size_t matrices = 0;
  double bytes = 0;
  double operations = 0;
  for (; bytes < static_cast<double>(kBytesPerRound); ++matrices) {
    const Shape& shape = shapes[matrices % shapes.size()];
    bytes += static_cast<double>(shape.code_bytes() + shape.scale_bytes());
    operations += 2.0 * static_cast<double>(shape.out * shape.in);
  }
  const auto round = [&] {
    for (size_t i = 0; i < matrices; ++i) {
      const Shape& shape = shapes[i % shapes.size()];
      const MatrixView weight = source.next(shape);
      linear(bench.runtime(), weight, Span2d<const float>(x.data(), 1, shape.in),
             Span2d<float>(y.data(), 1, shape.out));
    }
  };
  return against_bandwidth(bench, {.shape = description, .bytes = bytes, .operations = operations, .run = round});
}

Result fp4_expert_gemv(const Workbench& bench) {
  const Shape up{MatrixFormat::kFp4Block32, kInner, kHidden};
  const Shape down{MatrixFormat::kFp4Block32, kHidden, kInner};
  return measure_gemv(bench, {up, up, down}, "w1, w3 [2304,5120] and w2 [5120,2304] FP4, one row");
}

Result fp8_dense_gemv(const Workbench& bench) {
  const Shape wq_b{MatrixFormat::kFp8Tile32, 32768, 1280};
  const Shape wo_b{MatrixFormat::kFp8Tile32, kHidden, 8192};
  const Shape up{MatrixFormat::kFp8Tile32, kInner, kHidden};
  const Shape down{MatrixFormat::kFp8Tile32, kHidden, kInner};
  return measure_gemv(bench, {wq_b, wo_b, up, up, down}, "wq_b [32768,1280], wo_b [5120,8192], shared expert, one row");
}

Result bf16_head_gemv(const Workbench& bench) {
  // The released head is 129280 outputs; here in slices, so that it streams through the random bytes.
  return measure_gemv(bench, {{MatrixFormat::kBf16, 16160, kHidden}}, "head [129280,5120] in 8 slices, one row");
}

Result fp8_dense_n512(const Workbench& bench) {
  return against_peak(bench, dense_n512_work(bench));
}

/// `count` packed rows of random codes with the same scale.
Buffer<std::byte> packed_rows(RowFormat format, size_t width, size_t count) {
  const size_t bytes = row_bytes(format, width);
  const Buffer<float> values = test_vector(width * 97);
  Buffer<std::byte> rows(count * bytes);
  for (size_t i = 0; i < std::min<size_t>(count, 97); ++i) {
    pack_row(format, values.span().subspan(i * width, width), rows.span().subspan(i * bytes, bytes));
  }
  for (size_t i = 97; i < count; ++i)
    std::copy_n(rows.data() + (i % 97) * bytes, bytes, rows.data() + i * bytes);
  return rows;
}

Result sparse_attention_n1(const Workbench& bench) {
  constexpr size_t kHeads = 64;
  constexpr size_t kWidth = 512;
  constexpr size_t kWindow = 128;
  constexpr size_t kGlobal = 512;
  const size_t window_bytes = row_bytes(RowFormat::kFp8Block32, kWidth);
  const size_t global_bytes = row_bytes(RowFormat::kFp4Block16, kWidth);
  const Buffer<std::byte> window_rows = packed_rows(RowFormat::kFp8Block32, kWidth, kWindow);
  const Buffer<std::byte> global_rows = packed_rows(RowFormat::kFp4Block16, kWidth, kGlobal);
  std::vector<const std::byte*> window;
  std::vector<const std::byte*> global;
  for (size_t i = 0; i < kWindow; ++i)
    window.push_back(window_rows.data() + i * window_bytes);
  for (size_t i = 0; i < kGlobal; ++i)
    global.push_back(global_rows.data() + i * global_bytes);
  const Buffer<float> q = test_vector(kHeads * kWidth);
  const std::vector<float> sink(kHeads, 0.0F);
  Buffer<float> out(kHeads * kWidth);
  // As the engine splits a single row: one part of the heads a thread.
  const size_t parts = kHeads % bench.pool.thread_count() == 0 ? bench.pool.thread_count() : 1;
  const size_t heads = kHeads / parts;
  std::vector<Buffer<float>> scratch;
  scratch.reserve(bench.pool.thread_count());
  for (size_t i = 0; i < bench.pool.thread_count(); ++i) {
    scratch.emplace_back(kernels::attention_scratch_floats(heads, kWidth));
  }
  const auto once = [&] {
    bench.pool.run(parts, [&](size_t part, size_t worker) {
      bench.table.sparse_attention({.q = q.data() + part * heads * kWidth,
                                    .heads = heads,
                                    .width = kWidth,
                                    .window = {window.data(), kWindow, RowFormat::kFp8Block32},
                                    .global = {global.data(), kGlobal, RowFormat::kFp4Block16},
                                    .sink = sink.data() + part * heads,
                                    .scale = 0.0442F,
                                    .round_probabilities = true,
                                    .out = out.data() + part * heads * kWidth,
                                    .scratch = scratch[worker].data()});
    });
  };
  return against_both(bench, {.shape = "64 heads of 512, 128 window + 512 global rows",
                              .repeats = 31,
                              .bytes = static_cast<double>(kWindow * window_bytes + kGlobal * global_bytes),
                              .operations = 4.0 * static_cast<double>(kHeads * kWidth * (kWindow + kGlobal)),
                              .run = once});
}

constexpr size_t kContext = 1 << 20;

Result index_scan_1m(const Workbench& bench) {
  constexpr size_t kHeads = 32;
  constexpr size_t kWidth = 128;
  constexpr size_t kPart = 4096;
  const size_t key_bytes = row_bytes(RowFormat::kFp4Block32, kWidth);
  const Buffer<std::byte> keys = packed_rows(RowFormat::kFp4Block32, kWidth, kContext);
  const Buffer<float> q = test_vector(kHeads * kWidth);
  Buffer<float> scores(kContext);
  std::vector<Buffer<float>> scratch;
  scratch.reserve(bench.pool.thread_count());
  for (size_t i = 0; i < bench.pool.thread_count(); ++i)
    scratch.emplace_back(kernels::index_scratch_floats(kWidth));
  // As they lie in the cache: in blocks.
  std::vector<kernels::KeyRun> runs;
  for (size_t key = 0; key < kContext; key += kBlockTokens)
    runs.push_back({keys.data() + key * key_bytes, kBlockTokens});
  const auto once = [&] {
    bench.pool.run(kContext / kPart, [&](size_t part, size_t worker) {
      bench.table.index_scores({.q = q.data(),
                                .weights = q.data(),
                                .heads = kHeads,
                                .width = kWidth,
                                .runs = runs.data() + part * (kPart / kBlockTokens),
                                .run_count = kPart / kBlockTokens,
                                .key_stride = key_bytes,
                                .format = RowFormat::kFp4Block32,
                                .round = true,
                                .scores = scores.data() + part * kPart,
                                .scratch = scratch[worker].data()});
    });
  };
  return against_both(bench, {.shape = "1,048,576 keys of 128 FP4, 32 heads",
                              .repeats = 5,
                              .bytes = static_cast<double>(kContext * key_bytes),
                              .operations = 2.0 * static_cast<double>(kContext * kHeads * kWidth),
                              .run = once});
}

/// The step from one sub-block to the next: streams expanded with the output of the one left, mixed anew, collapsed to
/// the input of the one entered.
Result mhc_n512(const Workbench& bench) {
  constexpr size_t kRows = 512;
  constexpr size_t kStreams = 4;
  constexpr size_t kProducts = 2 * kStreams + kStreams * kStreams;
  const HyperConnectionConfig config{kStreams, kHidden, 20, 1e-6F, 1e-20F};
  Buffer<float> stream = test_vector(kRows * kStreams * kHidden);
  const Buffer<float> fn = test_vector(kProducts * kStreams * kHidden);
  const Buffer<float> base = test_vector(kProducts);
  const Buffer<float> y = test_vector(kRows * kHidden);
  Buffer<float> x(kRows * kHidden);
  Buffer<float> pending = test_vector(kRows * kStreams);
  constexpr float kScale[] = {0.01F, 0.01F, 0.01F};
  const HyperConnectionWeights weights{
      {MatrixFormat::kFloat32, kProducts, kStreams * kHidden, reinterpret_cast<const std::byte*>(fn.data()), nullptr},
      base.data(),
      kScale};
  const Math math(bench.runtime(), kOfficialNumerics);
  Arena arena;
  ForwardPass pass;
  pass.arena = &arena;
  pass.rows = kRows;
  pass.stream = Span2d<float>(stream.data(), kRows, kStreams * kHidden);
  pass.pre_mix = Span2d<float>(pending.data(), kRows, kStreams);
  const HyperConnectionMix left = hyper_connection_mix(math, config, weights, pass);
  const HyperConnectionMix entered = make_mix(arena, kRows, kStreams);
  const StreamCrossing crossing = {.left = &left,
                                   .y = Span2d<const float>(y.data(), kRows, kHidden),
                                   .weights = &weights,
                                   .entered = &entered,
                                   .x = Span2d<float>(x.data(), kRows, kHidden)};
  return against_bandwidth(bench, {.shape = "512 rows of four streams of 5,120, 2n + 2 vectors each",
                                   .bytes = static_cast<double>((2 * kStreams + 2) * kRows * kHidden * sizeof(float)),
                                   // A sum of squares, F, and what expands and collapses the streams.
                                   .operations = 2.0 * kRows * kStreams * kHidden * (kProducts + kStreams + 3),
                                   .run = [&] { cross_streams(math, config, pass, crossing); }});
}

Buffer<float> random_scores() {
  Buffer<float> scores(kContext);
  uint32_t state = 1;
  for (size_t i = 0; i < kContext; ++i) {
    state = state * 1664525U + 1013904223U;
    scores[i] = static_cast<float>(state >> 8) / 16777216.0F;
  }
  return scores;
}

Result measure_topk(const Workbench& bench, const Buffer<float>& scores, const std::string& description) {
  std::vector<uint32_t> chosen(512);
  std::vector<uint32_t> places(kernels::shared_top_k_scratch(bench.pool.thread_count(), chosen.size()));
  std::vector<float> values(places.size());
  return against_both(
      bench,
      {.shape = description, .repeats = 31, .bytes = static_cast<double>(kContext * sizeof(float)), .run = [&] {
         (void)kernels::select_top_k(bench.pool, {scores.span(), chosen.size(), chosen, places, values}, bench.table);
       }});
}

Result topk_1m(const Workbench& bench) {
  return measure_topk(bench, random_scores(), "top 512 of 1,048,576 scores");
}

/// Scores that are low wherever a sample of one of every 512 might look by a simple rule, at the multiples of 512 and
/// half between them, and random elsewhere.
Result topk_1m_misled(const Workbench& bench) {
  Buffer<float> scores = random_scores();
  for (size_t i = 0; i < kContext; i += 256)
    scores[i] = -1;
  return measure_topk(bench, scores, "the same where every 256th score, and none else, is low");
}

}  // namespace

Work dense_n512_work(const Workbench& bench) {
  constexpr size_t kRows = 512;
  struct State {
    explicit State(const Workbench& with) : source(with.bytes), x(test_vector(kRows * kHidden)), y(kRows * 32768) {}
    MatrixSource source;
    Buffer<float> x;
    Buffer<float> y;
  };
  const auto state = std::make_shared<State>(bench);
  const std::vector<Shape> shapes{{MatrixFormat::kFp8Tile32, kHidden, kHidden},
                                  {MatrixFormat::kFp8Tile32, 32768, kHidden}};
  double bytes = 0;
  double operations = 0;
  for (const Shape& shape : shapes) {
    bytes += static_cast<double>(shape.code_bytes() + shape.scale_bytes());
    bytes += static_cast<double>(kRows * (shape.in + shape.out) * sizeof(float));
    operations += 2.0 * static_cast<double>(kRows * shape.in * shape.out);
  }
  return {.shape = "[5120,5120] and [32768,5120] FP8, 512 rows",
          .repeats = 5,
          .bytes = bytes,
          .operations = operations,
          .run = [&bench, state, shapes] {
            for (const Shape& shape : shapes) {
              linear(bench.runtime(), state->source.next(shape), Span2d<const float>(state->x.data(), kRows, shape.in),
                     Span2d<float>(state->y.data(), kRows, shape.out));
            }
          }};
}

std::vector<Entry> kernel_entries() {
  return {{"fp4_expert_gemv_n1", fp4_expert_gemv},
          {"fp8_dense_gemv_n1", fp8_dense_gemv},
          {"bf16_head_gemv_n1", bf16_head_gemv},
          {"fp8_dense_n512", fp8_dense_n512},
          {"sparse_attention_n1", sparse_attention_n1},
          {"index_scan_1m", index_scan_1m},
          {"mhc_n512", mhc_n512},
          {"topk_1m", topk_1m},
          {"topk_1m_misled", topk_1m_misled}};
}

}  // namespace tidepool::bench
