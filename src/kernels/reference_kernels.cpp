#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>

#include "formats/bf16.h"
#include "formats/fp4.h"
#include "formats/fp8.h"
#include "formats/row_format.h"
#include "kernels/kernel_table.h"

// The meaning of every kernel: scalar, one order of summation, nothing fused (the build sets -ffp-contract=off).

namespace tidepool::kernels {
namespace {

constexpr size_t kBlock = 32;

/// Up to 32 consecutive weights of one output, and the multiplier they share.
struct WeightBlock {
  std::array<float, kBlock> value{};
  float scale = 1;
};

/// decode(output, first column, count) gives a WeightBlock. One 32-wide block at a time: the block's dot product, then
/// the running sum, both binary32. The running sum lives in y, so a block is decoded once for all rows.
template <typename Decode>
void linear_blocks(const LinearArgs& args, const Decode& decode) noexcept {
  const size_t in = args.weight.in;
  for (size_t o = args.out_begin; o < args.out_end; ++o) {
    for (size_t r = 0; r < args.rows; ++r)
      args.y[r * args.y_stride + o] = 0;
    for (size_t begin = 0; begin < in; begin += kBlock) {
      const size_t count = std::min(kBlock, in - begin);
      const WeightBlock block = decode(o, begin, count);
      for (size_t r = 0; r < args.rows; ++r) {
        const float* x = args.x + r * args.x_stride + begin;
        float dot = 0;
        for (size_t i = 0; i < count; ++i)
          dot += x[i] * block.value[i];
        args.y[r * args.y_stride + o] += dot * block.scale;
      }
    }
  }
}

void linear_fp8(const LinearArgs& args) noexcept {
  const MatrixView& weight = args.weight;
  const size_t scale_columns = (weight.in + kBlock - 1) / kBlock;
  linear_blocks(args, [&](size_t o, size_t begin, size_t count) {
    WeightBlock block;
    const std::byte* codes = weight.data + o * weight.in + begin;
    for (size_t i = 0; i < count; ++i)
      block.value[i] = to_float(E4m3{static_cast<uint8_t>(codes[i])});
    block.scale = to_float(E8m0{weight.scales[o / kBlock * scale_columns + begin / kBlock]});
    return block;
  });
}

void linear_fp4(const LinearArgs& args) noexcept {
  const MatrixView& weight = args.weight;
  linear_blocks(args, [&](size_t o, size_t begin, size_t count) {
    WeightBlock block;
    const std::byte* pairs = weight.data + (o * weight.in + begin) / 2;
    for (size_t i = 0; i < count; ++i) {
      const auto pair = static_cast<uint8_t>(pairs[i / 2]);
      block.value[i] = to_float(E2m1{static_cast<uint8_t>(i % 2 == 0 ? pair & 15 : pair >> 4)});
    }
    block.scale = to_float(E8m0{weight.scales[(o * weight.in + begin) / kBlock]});
    return block;
  });
}

void linear_bf16(const LinearArgs& args) noexcept {
  const MatrixView& weight = args.weight;
  linear_blocks(args, [&](size_t o, size_t begin, size_t count) {
    WeightBlock block;
    std::array<Bf16, kBlock> stored{};
    std::memcpy(stored.data(), weight.data + (o * weight.in + begin) * sizeof(Bf16), count * sizeof(Bf16));
    for (size_t i = 0; i < count; ++i)
      block.value[i] = to_float(stored[i]);
    return block;
  });
}

void linear_f32(const LinearArgs& args) noexcept {
  const MatrixView& weight = args.weight;
  linear_blocks(args, [&](size_t o, size_t begin, size_t count) {
    WeightBlock block;
    std::memcpy(block.value.data(), weight.data + (o * weight.in + begin) * sizeof(float), count * sizeof(float));
    return block;
  });
}

float dot(const float* a, const float* b, size_t count) {
  float sum = 0;
  for (size_t i = 0; i < count; ++i)
    sum += a[i] * b[i];
  return sum;
}

/// The `index`-th row of window and global taken as one list, decoded.
void decode_row(const AttentionArgs& args, size_t index, float* out) {
  const bool is_window = index < args.window.count;
  const RowList& list = is_window ? args.window : args.global;
  const std::byte* row = list.rows[is_window ? index : index - args.window.count];
  unpack_row(list.format, {row, row_bytes(list.format, args.width)}, {out, args.width});
}

/// One head against one block of decoded rows; `out` holds the sum so far, unnormalised.
struct HeadState {
  float max = -1e30F;
  float sum = 0;
};
void attend_block(const AttentionArgs& args, size_t head, const float* rows, size_t count, HeadState& state) {
  const float* q = args.q + head * args.width;
  float* out = args.out + head * args.width;
  std::array<float, kAttentionBlock> p{};
  float max = state.max;
  for (size_t j = 0; j < count; ++j) {
    p[j] = args.scale * dot(q, rows + j * args.width, args.width);
    max = std::max(max, p[j]);
  }
  const float rescale = std::exp(state.max - max);
  state.max = max;
  state.sum *= rescale;
  for (size_t i = 0; i < args.width; ++i)
    out[i] *= rescale;
  for (size_t j = 0; j < count; ++j) {
    p[j] = std::exp(p[j] - max);
    state.sum += p[j];
    const float value_weight = args.round_probabilities ? tidepool::round_bf16(p[j]) : p[j];
    const float* row = rows + j * args.width;
    for (size_t i = 0; i < args.width; ++i)
      out[i] += value_weight * row[i];
  }
}

void sparse_attention(const AttentionArgs& args) noexcept {
  const size_t total = args.window.count + args.global.count;
  std::fill_n(args.out, args.heads * args.width, 0.0F);
  if (total == 0) return;
  float* rows = args.scratch;
  float* max = rows + kAttentionBlock * args.width;
  float* sum = max + args.heads;
  std::fill_n(max, args.heads, HeadState{}.max);
  std::fill_n(sum, args.heads, HeadState{}.sum);
  for (size_t begin = 0; begin < total; begin += kAttentionBlock) {
    const size_t count = std::min(kAttentionBlock, total - begin);
    for (size_t j = 0; j < count; ++j)
      decode_row(args, begin + j, rows + j * args.width);
    for (size_t h = 0; h < args.heads; ++h) {
      HeadState state{max[h], sum[h]};
      attend_block(args, h, rows, count, state);
      max[h] = state.max;
      sum[h] = state.sum;
    }
  }
  for (size_t h = 0; h < args.heads; ++h) {
    const float denominator = sum[h] + std::exp(args.sink[h] - max[h]);
    for (size_t i = 0; i < args.width; ++i)
      args.out[h * args.width + i] /= denominator;
  }
}

float score_key(const IndexScoreArgs& args, const float* key) {
  float score = 0;
  for (size_t h = 0; h < args.heads; ++h) {
    const float product = dot(args.q + h * args.width, key, args.width);
    const float relu = product <= 0 ? 0.0F : product;  // a NaN stays one
    score += args.round ? tidepool::round_bf16(tidepool::round_bf16(relu) * args.weights[h]) : relu * args.weights[h];
  }
  return args.round ? tidepool::round_bf16(score) : score;
}

void index_scores(const IndexScoreArgs& args) noexcept {
  const size_t bytes = row_bytes(args.format, args.width);
  float* key = args.scratch;
  float* out = args.scores;
  for (const KeyRun& run : std::span(args.runs, args.run_count)) {
    for (size_t j = 0; j < run.count; ++j) {
      unpack_row(args.format, {run.keys + j * args.key_stride, bytes}, {key, args.width});
      *out++ = score_key(args, key);
    }
  }
}

/// The mean square is summed in binary64, so that this is the value the vector versions are judged by.
void rms_norm(const float* x, const Bf16* weight, size_t count, float eps, float* y) noexcept {
  double sum = 0;
  for (size_t i = 0; i < count; ++i)
    sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  const auto mean = static_cast<float>(sum / static_cast<double>(count));
  const float factor = 1.0F / std::sqrt(mean + eps);
  for (size_t i = 0; i < count; ++i)
    y[i] = x[i] * factor * (weight ? to_float(weight[i]) : 1.0F);
}

/// A block with an infinity or a NaN in it becomes NaN as a whole: the largest magnitude, and with it the scale, is.
void quantise_fp8(float* x, size_t count) noexcept {
  for (size_t begin = 0; begin < count; begin += kBlock) {
    float* block = x + begin;
    float amax = 1e-4F;
    bool is_finite = true;
    for (size_t i = 0; i < kBlock; ++i) {
      amax = std::max(amax, std::fabs(block[i]));
      is_finite = is_finite && std::isfinite(block[i]);
    }
    if (!is_finite) {
      std::fill_n(block, kBlock, std::numeric_limits<float>::quiet_NaN());
      continue;
    }
    const float scale = to_float(ceil_to_e8m0(amax / kE4m3Max));
    for (size_t i = 0; i < kBlock; ++i)
      block[i] = to_float(to_e4m3(block[i] / scale)) * scale;
  }
}

void round_bf16(float* x, size_t count) noexcept {
  for (size_t i = 0; i < count; ++i)
    x[i] = tidepool::round_bf16(x[i]);
}

void rope(float* x, const float* cos, const float* sin, size_t pairs, float sin_sign) noexcept {
  for (size_t i = 0; i < pairs; ++i) {
    const float s = sin[i] * sin_sign;
    const float even = x[2 * i];
    const float odd = x[2 * i + 1];
    x[2 * i] = even * cos[i] - odd * s;
    x[2 * i + 1] = even * s + odd * cos[i];
  }
}

void swiglu(const float* gate, const float* up, size_t count, float limit, float weight, float* y) noexcept {
  for (size_t i = 0; i < count; ++i) {
    // Written so that a NaN passes the clamp.
    const float g = limit > 0 && gate[i] > limit ? limit : gate[i];
    float u = up[i];
    if (limit > 0 && u > limit) u = limit;
    if (limit > 0 && u < -limit) u = -limit;
    y[i] = g / (1.0F + std::exp(-g)) * u * weight;
  }
}

float softmax_terms(float* x, size_t count, float scale) noexcept {
  float largest = -std::numeric_limits<float>::infinity();
  for (size_t i = 0; i < count; ++i)
    largest = x[i] > largest ? x[i] : largest;
  float sum = 0;
  for (size_t i = 0; i < count; ++i) {
    x[i] = std::exp(scale * (x[i] - largest));
    sum += x[i];
  }
  return sum;
}

Above collect_above(const AboveArgs& args) noexcept {
  Above found{.count = 0, .next = args.begin};
  while (found.next < args.end && found.count + kAboveBlock <= args.room) {
    const size_t end = std::min(found.next + kAboveBlock, args.end);
    for (size_t i = found.next; i < end; ++i) {
      if (!(args.x[i] > args.above)) continue;
      args.values[found.count] = args.x[i];
      args.places[found.count++] = static_cast<uint32_t>(i);
    }
    found.next = end;
  }
  return found;
}

void add(float* sum, const float* x, size_t count) noexcept {
  for (size_t i = 0; i < count; ++i)
    sum[i] += x[i];
}

void hc_collapse(const float* stream, const float* pre, size_t streams, size_t width, float* y) noexcept {
  for (size_t i = 0; i < width; ++i) {
    float sum = 0;
    for (size_t j = 0; j < streams; ++j)
      sum += pre[j] * stream[j * width + i];
    y[i] = sum;
  }
}

void hc_expand(float* stream, const float* y, const float* post, const float* comb, size_t streams,
               size_t width) noexcept {
  // The old values of one column are needed by all its new ones.
  std::array<float, kHcStreamsMax> old{};
  for (size_t i = 0; i < width; ++i) {
    for (size_t j = 0; j < streams; ++j)
      old[j] = stream[j * width + i];
    for (size_t k = 0; k < streams; ++k) {
      float sum = post[k] * y[i];
      for (size_t j = 0; j < streams; ++j)
        sum += comb[j * streams + k] * old[j];
      stream[k * width + i] = sum;
    }
  }
}

constexpr KernelTable kReference = {
    .name = "reference",
    .linear_fp8 = linear_fp8,
    .linear_fp4 = linear_fp4,
    .linear_bf16 = linear_bf16,
    .linear_f32 = linear_f32,
    .sparse_attention = sparse_attention,
    .index_scores = index_scores,
    .rms_norm = rms_norm,
    .quantise_fp8 = quantise_fp8,
    .round_bf16 = round_bf16,
    .rope = rope,
    .swiglu = swiglu,
    .softmax_terms = softmax_terms,
    .collect_above = collect_above,
    .add = add,
    .hc_collapse = hc_collapse,
    .hc_expand = hc_expand,
};

}  // namespace

const KernelTable& reference_kernels() {
  return kReference;
}

}  // namespace tidepool::kernels
