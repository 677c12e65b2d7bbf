#include "model/engram.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "formats/fp8.h"

namespace tidepool {

namespace {

/// Columns of a table row that share one scale.
constexpr size_t kScaleBlock = 32;

/// The exact values of table row `index`.
void read_table_row(const EngramWeights& weights, size_t head_dim, int64_t index, std::span<float> out) {
  const std::byte* codes = weights.codes + static_cast<size_t>(index) * head_dim;
  const uint8_t* scales = weights.scales + static_cast<size_t>(index) * (head_dim / kScaleBlock);
  for (size_t c = 0; c < head_dim; ++c) {
    out[c] = to_float(E4m3{static_cast<uint8_t>(codes[c])}) * to_float(E8m0{scales[c / kScaleBlock]});
  }
}

void hash_row(const Engram& engram, std::span<const InputToken> tokens, int64_t position, std::span<int64_t> out) {
  if (engram.image_fault != ImageFault::kHashedImages) return engram.hash.rows(engram.slot, tokens, position, out);
  // As many tokens as an n-gram reaches back, all of them text.
  const auto reach = static_cast<int64_t>(engram.hash.multipliers(engram.slot).size());
  const int64_t begin = std::max(position - reach, int64_t{0});
  std::vector<InputToken> text(tokens.begin() + begin, tokens.begin() + position + 1);
  for (InputToken& token : text)
    token.is_image = false;
  engram.hash.rows(engram.slot, text, position - begin, out);
}

void gather_rows(const Engram& engram, const ForwardPass& pass, Span2d<float> out) {
  const size_t columns = engram.hash.columns();
  const Span2d<int64_t> ids(pass.arena->take<int64_t>(pass.rows * columns).data(), pass.rows, columns);
  engram.math.for_rows(pass.rows, [&](size_t row, size_t) {
    hash_row(engram, pass.segment(row).state->tokens(), pass.position(row), ids.row(row));
    for (size_t c = 0; c < columns; ++c) {
      read_table_row(engram.weights, engram.head_dim, ids.row(row)[c],
                     out.row(row).subspan(c * engram.head_dim, engram.head_dim));
    }
  });
  for (size_t row = 0; pass.probe != nullptr && row < pass.rows; ++row) {
    pass.probe->record_ints("engram_hash", static_cast<int64_t>(engram.slot), pass.position(row), ids.row(row));
  }
}

}  // namespace

float engram_dot(std::span<const float> h, std::span<const float> key, const Bf16* q_weight, const Bf16* k_weight,
                 float eps) {
  float dot = 0;
  float h_squares = 0;
  float key_squares = 0;
  for (size_t i = 0; i < h.size(); ++i) {
    dot += h[i] * (to_float(q_weight[i]) * to_float(k_weight[i])) * key[i];
    h_squares += h[i] * h[i];
    key_squares += key[i] * key[i];
  }
  const auto width = static_cast<float>(h.size());
  return dot * (1.0F / std::sqrt(h_squares / width + eps)) * (1.0F / std::sqrt(key_squares / width + eps)) *
         (1.0F / std::sqrt(width));
}

float engram_gate(float dot) {
  const float root = std::sqrt(std::max(std::abs(dot), 1e-6F));
  const float sign = dot > 0 ? 1.0F : (dot < 0 ? -1.0F : 0.0F);
  return 1.0F / (1.0F + std::exp(-sign * root));
}

void apply_engram(const Engram& engram, const ForwardPass& pass) {
  const Arena::Scope scope(*pass.arena);
  const Math& math = engram.math;
  const Span2d<float> table_rows = pass.arena->matrix(pass.rows, engram.weights.wkv.in);
  gather_rows(engram, pass, table_rows);
  math.quantise_rows(table_rows);
  const Span2d<float> keys_value = pass.arena->matrix(pass.rows, engram.weights.wkv.out);
  math.linear(engram.weights.wkv, table_rows, keys_value);

  const size_t d = engram.hidden;
  const Span2d<float> gates = pass.arena->matrix(pass.rows, engram.streams);
  math.for_rows(pass.rows, [&](size_t row, size_t) {
    const std::span<const float> value = keys_value.row(row).subspan(engram.streams * d, d);
    const bool is_dead = pass.token(row).is_image && engram.image_fault != ImageFault::kOpenEngram;
    for (size_t j = 0; j < engram.streams; ++j) {
      const std::span<float> stream = pass.stream.row(row).subspan(j * d, d);
      const float dot = engram_dot(stream, keys_value.row(row).subspan(j * d, d), engram.weights.q_weight + j * d,
                                   engram.weights.k_weight + j * d, engram.norm_eps);
      const float gate = is_dead ? 0.0F : engram_gate(dot);
      gates.row(row)[j] = gate;
      if (is_dead) continue;
      for (size_t i = 0; i < d; ++i)
        stream[i] += gate * value[i];
      math.round(stream);
    }
  });
  pass.record("engram_gate", engram.layer, gates);
  pass.record("engram_out", engram.layer, pass.stream);
}

}  // namespace tidepool
