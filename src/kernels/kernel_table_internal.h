#pragma once

#include "kernels/kernel_table.h"

/// The vector versions, one namespace per instruction set. Each may be called only where the processor has the set:
/// kernel_table.cpp decides. Meanings are those of the KernelTable entries of the same names.
namespace tidepool::kernels {

namespace avx2 {
float softmax_terms(float* x, size_t count, float scale) noexcept;
void linear_fp8(const LinearArgs& args) noexcept;
void linear_fp4(const LinearArgs& args) noexcept;
void linear_bf16(const LinearArgs& args) noexcept;
void linear_f32(const LinearArgs& args) noexcept;
void sparse_attention(const AttentionArgs& args) noexcept;
void index_scores(const IndexScoreArgs& args) noexcept;
void rms_norm(const float* x, const Bf16* weight, size_t count, float eps, float* y) noexcept;
void quantise_fp8(float* x, size_t count) noexcept;
void round_bf16(float* x, size_t count) noexcept;
void rope(float* x, const float* cos, const float* sin, size_t pairs, float sin_sign) noexcept;
void swiglu(const float* gate, const float* up, size_t count, float limit, float weight, float* y) noexcept;
Above collect_above(const AboveArgs& args) noexcept;
void add(float* sum, const float* x, size_t count) noexcept;
void hc_collapse(const float* stream, const float* pre, size_t streams, size_t width, float* y) noexcept;
void hc_expand(float* stream, const float* y, const float* post, const float* comb, size_t streams,
               size_t width) noexcept;
}  // namespace avx2

namespace avx512 {
float softmax_terms(float* x, size_t count, float scale) noexcept;
void linear_fp8(const LinearArgs& args) noexcept;
void linear_fp4(const LinearArgs& args) noexcept;
void linear_bf16(const LinearArgs& args) noexcept;
void linear_f32(const LinearArgs& args) noexcept;
void sparse_attention(const AttentionArgs& args) noexcept;
void index_scores(const IndexScoreArgs& args) noexcept;
void rms_norm(const float* x, const Bf16* weight, size_t count, float eps, float* y) noexcept;
void quantise_fp8(float* x, size_t count) noexcept;
void round_bf16(float* x, size_t count) noexcept;
void rope(float* x, const float* cos, const float* sin, size_t pairs, float sin_sign) noexcept;
void swiglu(const float* gate, const float* up, size_t count, float limit, float weight, float* y) noexcept;
Above collect_above(const AboveArgs& args) noexcept;
void add(float* sum, const float* x, size_t count) noexcept;
void hc_collapse(const float* stream, const float* pre, size_t streams, size_t width, float* y) noexcept;
void hc_expand(float* stream, const float* y, const float* post, const float* comb, size_t streams,
               size_t width) noexcept;
}  // namespace avx512

/// Products in bfloat16, with the other entries of avx512; needs both. Inputs are exact in bfloat16.
namespace avx512bf16 {
void linear_fp8(const LinearArgs& args) noexcept;
void linear_fp4(const LinearArgs& args) noexcept;
void linear_bf16(const LinearArgs& args) noexcept;
size_t packed_bytes(MatrixFormat format, size_t rows, size_t in) noexcept;
void pack_inputs(const PackArgs& args) noexcept;
void dense_attention(const DenseAttentionArgs& args) noexcept;
void pack_dense(const DensePackArgs& args) noexcept;
void sparse_attention(const AttentionArgs& args) noexcept;
void index_scores(const IndexScoreArgs& args) noexcept;
}  // namespace avx512bf16

/// On tiles, with the other entries of avx512; needs both. Inputs are exact in bfloat16.
namespace amx {
void linear_fp8(const LinearArgs& args) noexcept;
void linear_fp4(const LinearArgs& args) noexcept;
void linear_bf16(const LinearArgs& args) noexcept;
/// A product of small integers, with its own configuration; needs tiles only.
[[nodiscard]] bool multiplies_one_tile_right() noexcept;
}  // namespace amx

namespace amx_emulated {
void linear_fp8(const LinearArgs& args) noexcept;
void linear_fp4(const LinearArgs& args) noexcept;
void linear_bf16(const LinearArgs& args) noexcept;
}  // namespace amx_emulated

/// The code of the "amx" table on emulated tiles, for tests alone: slow, and in no list. Null without AVX-512.
[[nodiscard]] const KernelTable* emulated_amx_kernels();

}  // namespace tidepool::kernels
