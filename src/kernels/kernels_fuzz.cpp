// Every table this processor can run against the reference, on shapes and numbers from the input: linears, attention,
// index scores; and top-k against a stable sort. Numbers are kept where no sum overflows (the order of additions would
// show), and activations exact in bfloat16 (tables may ask for that). NaN codes and scales may occur.
//   byte 0: what is checked (modulo 4); then its shape; then numbers. Where the bytes end, generated ones follow.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <vector>

#include "base/check.h"
#include "formats/bf16.h"
#include "formats/matrix.h"
#include "formats/row_format.h"
#include "kernels/kernel_table.h"
#include "kernels/kernel_table_internal.h"
#include "kernels/top_k.h"

namespace tidepool::kernels {
namespace {

/// The input, and after its end the sequence of a generator seeded by it.
class Source {
 public:
  Source(const uint8_t* data, size_t size) : rest_(data, size) {
    for (const uint8_t b : rest_)
      state_ = (state_ ^ b) * 0x100000001b3U;  // FNV-1a
  }
  uint8_t byte() {
    if (!rest_.empty()) {
      const uint8_t b = rest_.front();
      rest_ = rest_.subspan(1);
      return b;
    }
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return static_cast<uint8_t>(state_ >> 32);
  }
  size_t below(size_t count) { return (byte() + size_t{256} * byte()) % count; }
  /// 0, or of magnitude 2^-7 to 2^5, exact in bfloat16.
  float value() {
    const uint8_t mantissa = byte();
    const uint8_t exponent = byte();
    if (exponent == 0) return 0;
    const uint32_t bits = (mantissa & 0x80U) << 24 | (120U + exponent % 12) << 23 | (mantissa & 0x7fU) << 16;
    return std::bit_cast<float>(bits);
  }
  std::vector<float> values(size_t count) {
    std::vector<float> result(count);
    for (float& v : result)
      v = value();
    return result;
  }
  /// E8M0: 2^-12 to 2^7, rarely 2^-127 or NaN.
  uint8_t scale() {
    const uint8_t code = byte();
    return code == 0 || code == 255 ? code : static_cast<uint8_t>(115 + code % 20);
  }

 private:
  std::span<const uint8_t> rest_;
  uint64_t state_ = 0xcbf29ce484222325U;
};

bool same_bits(float a, float b) {
  return (std::isnan(a) && std::isnan(b)) || std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
}

/// Unit roundoff of binary32.
constexpr float kUnit = 0x1p-24F;

void check_close(float actual, float expected, float tolerance) {
  TIDEPOOL_CHECK(std::isnan(actual) == std::isnan(expected), "one of the two is NaN");
  TIDEPOOL_CHECK(std::isnan(expected) || std::fabs(actual - expected) <= tolerance, "differs from the reference");
}

// Linears.

using LinearEntry = void (*)(const LinearArgs&) noexcept;

LinearEntry linear_of(const KernelTable& table, MatrixFormat format) {
  switch (format) {
    case MatrixFormat::kFp8Tile32: return table.linear_fp8;
    case MatrixFormat::kFp4Block32: return table.linear_fp4;
    case MatrixFormat::kBf16: return table.linear_bf16;
    case MatrixFormat::kFloat32: return table.linear_f32;
  }
  return nullptr;
}

struct Matrix {
  MatrixFormat format;
  size_t out;
  size_t in;
  std::vector<std::byte> data;
  std::vector<uint8_t> scales;

  [[nodiscard]] MatrixView view() const {
    return {.format = format, .out = out, .in = in, .data = data.data(), .scales = scales.data()};
  }
};

Matrix make_matrix(Source& source) {
  constexpr MatrixFormat kFormats[] = {MatrixFormat::kFp8Tile32, MatrixFormat::kFp4Block32, MatrixFormat::kBf16,
                                       MatrixFormat::kFloat32};
  Matrix matrix;
  matrix.format = kFormats[source.below(4)];
  matrix.out = 1 + source.below(70);
  matrix.in = 1 + source.below(700);
  if (matrix.format == MatrixFormat::kFp4Block32) matrix.in = (matrix.in + 31) / 32 * 32;
  matrix.data.resize(matrix.out * matrix_row_bytes(matrix.format, matrix.in));
  for (size_t i = 0; i < matrix.out * matrix.in; ++i) {
    if (matrix.format == MatrixFormat::kBf16) {
      const Bf16 value = to_bf16(source.value());
      std::memcpy(matrix.data.data() + 2 * i, &value, sizeof(value));
    } else if (matrix.format == MatrixFormat::kFloat32) {
      const float value = source.value() + source.value() * kUnit;  // all 24 bits
      std::memcpy(matrix.data.data() + 4 * i, &value, sizeof(value));
    } else if (i < matrix.data.size()) {
      matrix.data[i] = static_cast<std::byte>(source.byte());
    }
  }
  const size_t blocks = (matrix.in + 31) / 32;
  if (matrix.format == MatrixFormat::kFp8Tile32) matrix.scales.resize((matrix.out + 31) / 32 * blocks);
  if (matrix.format == MatrixFormat::kFp4Block32) matrix.scales.resize(matrix.out * blocks);
  for (uint8_t& scale : matrix.scales)
    scale = source.scale();
  return matrix;
}

struct Range {
  size_t begin;
  size_t end;
};

/// y [rows, weight.out]; outputs not asked for are -1.
std::vector<float> run_linear(const KernelTable& table, const MatrixView& weight, std::span<const float> x,
                              Range outputs) {
  const size_t rows = x.size() / weight.in;
  std::vector<float> y(rows * weight.out, -1.0F);
  linear_of(table, weight.format)({.weight = weight,
                                   .x = x.data(),
                                   .x_stride = weight.in,
                                   .rows = rows,
                                   .y = y.data(),
                                   .y_stride = weight.out,
                                   .out_begin = outputs.begin,
                                   .out_end = outputs.end});
  return y;
}

/// The same with rows that are packed beforehand, in two parts; empty where the table does not do that.
std::vector<float> run_packed(const KernelTable& table, const MatrixView& weight, std::span<const float> x,
                              size_t first_part) {
  const size_t rows = x.size() / weight.in;
  const size_t bytes = table.packed_bytes == nullptr ? 0 : table.packed_bytes(weight.format, rows, weight.in);
  if (bytes == 0) return {};
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  std::vector<Line> packed((bytes + sizeof(Line) - 1) / sizeof(Line));
  for (const Range part : {Range{0, first_part}, Range{first_part, rows}}) {
    table.pack_inputs({.format = weight.format,
                       .x = x.data(),
                       .x_stride = weight.in,
                       .in = weight.in,
                       .rows = rows,
                       .begin = part.begin,
                       .end = part.end,
                       .packed = packed.front().bytes});
  }
  std::vector<float> y(rows * weight.out, -1.0F);
  linear_of(table, weight.format)({.weight = weight,
                                   .x = x.data(),
                                   .x_stride = weight.in,
                                   .rows = rows,
                                   .y = y.data(),
                                   .y_stride = weight.out,
                                   .out_begin = 0,
                                   .out_end = weight.out,
                                   .packed_x = packed.front().bytes});
  return y;
}

/// sum_i |w[o, i] x[r, i]|, NaN where one of the weights is.
std::vector<float> linear_magnitudes(const Matrix& matrix, const std::vector<float>& x) {
  const size_t rows = x.size() / matrix.in;
  std::vector<float> result(rows * matrix.out);
  std::vector<float> row(matrix.in);
  for (size_t o = 0; o < matrix.out; ++o) {
    dequantise_row(matrix.view(), o, row);
    for (size_t r = 0; r < rows; ++r) {
      for (size_t i = 0; i < matrix.in; ++i)
        result[r * matrix.out + o] += std::fabs(row[i] * x[r * matrix.in + i]);
    }
  }
  return result;
}

void check_linear(Source& source) {
  const Matrix matrix = make_matrix(source);
  const size_t rows = 1 + source.below(80);
  const size_t first_part = source.below(rows + 1);
  const std::vector<float> x = source.values(rows * matrix.in);
  const Range whole = {0, matrix.out};
  const Range part = {matrix.out / 3, matrix.out - matrix.out / 4};
  const std::vector<float> expected = run_linear(reference_kernels(), matrix.view(), x, whole);
  const std::vector<float> magnitudes = linear_magnitudes(matrix, x);
  // n binary32 additions in any order are within n * unit * sum |w x| of the exact sum, products are rounded once and
  // scaled once more; both sides may be off. Below the normal numbers each step is off by half of 2^-149 instead.
  const auto steps = static_cast<float>(matrix.in + 2);
  std::vector<const KernelTable*> tables(available_kernels().begin(), available_kernels().end());
  if (emulated_amx_kernels() != nullptr) tables.push_back(emulated_amx_kernels());
  for (const KernelTable* table : tables) {
    const std::vector<float> actual = run_linear(*table, matrix.view(), x, whole);
    for (size_t i = 0; i < expected.size(); ++i)
      check_close(actual[i], expected[i], 2 * steps * kUnit * magnitudes[i] + steps * 0x1p-149F);
    const std::vector<float> packed = run_packed(*table, matrix.view(), x, first_part);
    for (size_t i = 0; i < packed.size(); ++i)
      TIDEPOOL_CHECK(same_bits(packed[i], actual[i]), "rows packed beforehand give other bits");
    const size_t row = rows - 1;
    const std::vector<float> alone =
        run_linear(*table, matrix.view(), std::span(x).subspan(row * matrix.in, matrix.in), part);
    for (size_t o = 0; o < matrix.out; ++o) {
      const bool is_asked = o >= part.begin && o < part.end;
      TIDEPOOL_CHECK(same_bits(alone[o], is_asked ? actual[row * matrix.out + o] : -1.0F),
                     "a row depends on its neighbours, or an output on the range");
    }
  }
}

// Rows: attention and index scores.

struct Rows {
  RowFormat format;
  size_t width;
  std::vector<std::vector<std::byte>> storage;  ///< each with its own memory, so that reading past one is seen

  std::vector<const std::byte*> pointers;
};

RowFormat any_format(Source& source) {
  constexpr RowFormat kFormats[] = {RowFormat::kFp8Block32, RowFormat::kFp4Block16, RowFormat::kFp4Block32,
                                    RowFormat::kFloat32};
  return kFormats[source.below(4)];
}

Rows make_rows(Source& source, RowFormat format, size_t width, size_t count) {
  Rows rows{.format = format, .width = width, .storage = {}, .pointers = {}};
  for (size_t j = 0; j < count; ++j) {
    std::vector<std::byte>& row = rows.storage.emplace_back(row_bytes(format, width));
    std::vector<float> values = source.values(width);
    pack_row(format, values, row);
    // A NaN scale now and then; codes come from the values.
    if (format != RowFormat::kFloat32 && source.byte() == 255) row.back() = std::byte{0xff};
  }
  for (const std::vector<std::byte>& row : rows.storage)
    rows.pointers.push_back(row.data());
  return rows;
}

RowList list_of(const Rows& rows) {
  return {.rows = rows.pointers.data(), .count = rows.pointers.size(), .format = rows.format};
}

/// The largest sum_i |q[h, i] row[i]| of any head and row, and the largest |row[i]|; rows with a NaN do not count.
struct Magnitudes {
  float score = 0;
  float value = 0;
};
Magnitudes magnitudes_of(const Rows& rows, const std::vector<float>& q) {
  Magnitudes result;
  std::vector<float> row(rows.width);
  for (const std::vector<std::byte>& storage : rows.storage) {
    unpack_row(rows.format, storage, row);
    for (const float v : row)
      result.value = std::max(result.value, std::fabs(v));
    for (size_t h = 0; h < q.size() / rows.width; ++h) {
      float score = 0;
      for (size_t i = 0; i < rows.width; ++i)
        score += std::fabs(q[h * rows.width + i] * row[i]);
      result.score = std::max(result.score, score);
    }
  }
  return result;
}

std::vector<float> attend(const KernelTable& table, AttentionArgs args) {
  std::vector<float> out(args.heads * args.width, 99.0F);
  std::vector<float> scratch(attention_scratch_floats(args.heads, args.width));
  args.out = out.data();
  args.scratch = scratch.data();
  table.sparse_attention(args);
  return out;
}

void check_attention(Source& source) {
  const size_t heads = 1 + source.below(20);
  const size_t width = 32 * (1 + source.below(6));
  const RowFormat window_format = any_format(source);
  const RowFormat global_format = any_format(source);
  const size_t in_window = source.below(140);
  const size_t in_global = source.below(140);
  const bool round = source.below(2) == 1;
  std::vector<float> q = source.values(heads * width);
  // As the official numerics have them, but for some: then rounding is for the probabilities alone.
  if (round && width % 64 == 0) reference_kernels().round_bf16(q.data(), q.size());
  const std::vector<float> sink = source.values(heads);
  const Rows window = make_rows(source, window_format, width, in_window);
  const Rows global = make_rows(source, global_format, width, in_global);
  const float scale = 1 / std::sqrt(static_cast<float>(width));
  const AttentionArgs args = {.q = q.data(),
                              .heads = heads,
                              .width = width,
                              .window = list_of(window),
                              .global = list_of(global),
                              .sink = sink.data(),
                              .scale = scale,
                              .round_probabilities = round};
  const Magnitudes first = magnitudes_of(window, q);
  const Magnitudes second = magnitudes_of(global, q);
  const float value = std::max(first.value, second.value);
  // A score is off by width + 2 roundings of sum |q k|, on both sides, and the scores' max by as much: so probabilities
  // by that exponentiated, by some units in the exponential and in the sums, and by one of bfloat16 (of unit 2^-9, on
  // either side of a boundary) where they are rounded. out is their average of values.
  const float score_error = 4 * static_cast<float>(width + 2) * kUnit * scale * std::max(first.score, second.score);
  const float relative = std::expm1(std::min(score_error, 80.0F)) +
                         static_cast<float>(in_window + in_global + 16) * 4 * kUnit + (round ? 0x1p-7F : 0.0F);
  const std::vector<float> expected = attend(reference_kernels(), args);
  for (const KernelTable* table : available_kernels()) {
    const std::vector<float> actual = attend(*table, args);
    for (size_t i = 0; i < expected.size(); ++i)
      check_close(actual[i], expected[i], 2 * relative * value);
  }
}

std::vector<float> score(const KernelTable& table, IndexScoreArgs args, size_t count) {
  std::vector<float> scores(count);
  std::vector<float> scratch(index_scratch_floats(args.width));
  args.scores = scores.data();
  args.scratch = scratch.data();
  table.index_scores(args);
  return scores;
}

void check_index_scores(Source& source) {
  const size_t heads = 1 + source.below(40);
  const size_t width = 32 * (1 + source.below(5));
  const RowFormat format = any_format(source);
  const size_t count = source.below(80);
  const bool round = source.below(2) == 1;
  std::vector<float> q = source.values(heads * width);
  std::vector<std::byte> on_grid(row_bytes(RowFormat::kFp4Block32, width));
  // On the FP4 grid where the heads are even in number, as the caller has them; else anything.
  for (size_t h = 0; heads % 2 == 0 && h < heads; ++h) {
    pack_row(RowFormat::kFp4Block32, std::span(q).subspan(h * width, width), on_grid);
    unpack_row(RowFormat::kFp4Block32, on_grid, std::span(q).subspan(h * width, width));
  }
  const std::vector<float> weights = source.values(heads);
  const Rows keys = make_rows(source, format, width, count);
  const size_t stride = row_bytes(format, width);
  std::vector<std::byte> packed;
  for (const std::vector<std::byte>& key : keys.storage)
    packed.insert(packed.end(), key.begin(), key.end());
  std::vector<KeyRun> runs;
  for (size_t first = 0; first < count;) {
    if (source.below(4) == 0) runs.push_back({packed.data(), 0});
    const size_t length = std::min<size_t>(count - first, 1 + source.below(40));
    runs.push_back({packed.data() + first * stride, length});
    first += length;
  }
  const IndexScoreArgs args = {.q = q.data(),
                               .weights = weights.data(),
                               .heads = heads,
                               .width = width,
                               .runs = runs.data(),
                               .run_count = runs.size(),
                               .key_stride = stride,
                               .format = format,
                               .round = round};
  float weight_sum = 0;
  for (const float w : weights)
    weight_sum += std::fabs(w);
  // width + 2 roundings of each dot, heads + 2 of the sum, on both sides; three of bfloat16 (unit 2^-9) may fall to the
  // other side of a boundary, which is two units each.
  const float unit_count = 2 * static_cast<float>(width + heads + 4);
  const float tolerance = weight_sum * magnitudes_of(keys, q).score * (unit_count * kUnit + (round ? 6 * 0x1p-9F : 0));
  const std::vector<float> expected = score(reference_kernels(), args, count);
  for (const KernelTable* table : available_kernels()) {
    const std::vector<float> actual = score(*table, args, count);
    for (size_t j = 0; j < count; ++j)
      check_close(actual[j], expected[j], tolerance);
  }
}

// Top-k.

/// Numbers of one of some kinds, many of them alike or in an order, as the input chooses.
std::vector<float> make_scores(Source& source) {
  std::vector<float> scores(source.below(50'000));
  const size_t kind = source.below(5);
  const size_t period = 1 + source.below(64);
  for (size_t i = 0; i < scores.size(); ++i) {
    uint32_t bits = 0;
    const size_t step = i / period;
    switch (kind) {
      case 0:  // anything
        for (int b = 0; b < 4; ++b)
          bits = bits << 8 | source.byte();
        scores[i] = std::bit_cast<float>(bits);
        break;
      case 1: scores[i] = source.value(); break;  // few different ones
      case 2: scores[i] = static_cast<float>(i + (i % period == 0 ? scores.size() : 0)); break;
      case 3: scores[i] = -static_cast<float>(step); break;
      default: scores[i] = i % period == 0 ? source.value() : -std::numeric_limits<float>::infinity(); break;
    }
  }
  return scores;
}

void check_top_k(Source& source) {
  const std::vector<float> scores = make_scores(source);
  const size_t k = source.below(3000);
  std::vector<uint32_t> expected;
  for (size_t i = 0; i < scores.size(); ++i) {
    if (scores[i] > -std::numeric_limits<float>::infinity()) expected.push_back(static_cast<uint32_t>(i));
  }
  std::stable_sort(expected.begin(), expected.end(), [&](uint32_t a, uint32_t b) { return scores[a] > scores[b]; });
  expected.resize(std::min(k, expected.size()));
  std::sort(expected.begin(), expected.end());
  for (const KernelTable* table : available_kernels()) {
    std::vector<uint32_t> actual(std::min(k, scores.size()));
    actual.resize(select_top_k(scores, k, actual, *table));
    TIDEPOOL_CHECK(actual == expected, "top-k differs from a stable sort");
  }
}

void check_any(Source& source) {
  switch (source.byte() % 4) {
    case 0: return check_linear(source);
    case 1: return check_attention(source);
    case 2: return check_index_scores(source);
    default: return check_top_k(source);
  }
}

}  // namespace
}  // namespace tidepool::kernels

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tidepool::kernels::Source source(data, size);
  tidepool::kernels::check_any(source);
  return 0;
}
