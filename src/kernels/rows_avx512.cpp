#include "kernels/kernel_table_internal.h"
#include "kernels/vec_avx512.h"
// After the Vec it is written in.
#include "kernels/rows_vector.h"

namespace tidepool::kernels::avx512 {

void rms_norm(const float* x, const Bf16* weight, size_t count, float eps, float* y) noexcept {
  rms_norm_rows(x, weight, count, eps, y);
}
void quantise_fp8(float* x, size_t count) noexcept {
  quantise_fp8_rows(x, count);
}
void round_bf16(float* x, size_t count) noexcept {
  round_bf16_rows(x, count);
}
void rope(float* x, const float* cos, const float* sin, size_t pairs, float sin_sign) noexcept {
  rope_rows(x, cos, sin, pairs, sin_sign);
}
void swiglu(const float* gate, const float* up, size_t count, float limit, float weight, float* y) noexcept {
  swiglu_rows(gate, up, count, limit, weight, y);
}
float softmax_terms(float* x, size_t count, float scale) noexcept {
  return softmax_terms_row(x, count, scale);
}
Above collect_above(const AboveArgs& args) noexcept {
  return collect_above_rows(args);
}
void add(float* sum, const float* x, size_t count) noexcept {
  add_rows(sum, x, count);
}
void hc_collapse(const float* stream, const float* pre, size_t streams, size_t width, float* y) noexcept {
  hc_collapse_rows(stream, pre, streams, width, y);
}
void hc_expand(float* stream, const float* y, const float* post, const float* comb, size_t streams,
               size_t width) noexcept {
  hc_expand_rows(stream, y, post, comb, streams, width);
}

}  // namespace tidepool::kernels::avx512
