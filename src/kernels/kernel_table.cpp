#include "kernels/kernel_table.h"

#include <cpuid.h>

#include <array>
#include <string>

#include "base/error.h"
#include "base/log.h"
#include "kernels/amx_status.h"
#include "kernels/kernel_table_internal.h"

namespace tidepool::kernels {
namespace {

/// Leaf 1, ECX bit 29; gcc 12 and clang 14 do not agree on a name for it in __builtin_cpu_supports.
bool has_f16c() {
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

constexpr KernelTable kAvx512 = {
    .name = "avx512",
    .linear_fp8 = avx512::linear_fp8,
    .linear_fp4 = avx512::linear_fp4,
    .linear_bf16 = avx512::linear_bf16,
    .linear_f32 = avx512::linear_f32,
    .sparse_attention = avx512::sparse_attention,
    .index_scores = avx512::index_scores,
    .rms_norm = avx512::rms_norm,
    .quantise_fp8 = avx512::quantise_fp8,
    .round_bf16 = avx512::round_bf16,
    .rope = avx512::rope,
    .swiglu = avx512::swiglu,
    .softmax_terms = avx512::softmax_terms,
    .collect_above = avx512::collect_above,
    .add = avx512::add,
    .hc_collapse = avx512::hc_collapse,
    .hc_expand = avx512::hc_expand,
};

/// Pairs of bfloat16 multiply what is exact in it; all else is the best vectors'.
constexpr KernelTable make_avx512bf16() {
  KernelTable table = kAvx512;
  table.name = "avx512bf16";
  table.needs_bf16_inputs = true;
  table.linear_fp8 = avx512bf16::linear_fp8;
  table.linear_fp4 = avx512bf16::linear_fp4;
  table.linear_bf16 = avx512bf16::linear_bf16;
  table.packed_bytes = avx512bf16::packed_bytes;
  table.pack_inputs = avx512bf16::pack_inputs;
  table.sparse_attention = avx512bf16::sparse_attention;
  table.index_scores = avx512bf16::index_scores;
  table.dense_attention = avx512bf16::dense_attention;
  table.pack_dense = avx512bf16::pack_dense;
  return table;
}
constexpr KernelTable kAvx512bf16 = make_avx512bf16();

/// Tiles multiply what is exact in bfloat16; all else is the best vectors'.
constexpr KernelTable make_amx() {
  KernelTable table = kAvx512bf16;
  table.name = "amx";
  table.needs_bf16_inputs = true;
  table.linear_fp8 = amx::linear_fp8;
  table.linear_fp4 = amx::linear_fp4;
  table.linear_bf16 = amx::linear_bf16;
  // Tiles have an order of their own, and put the rows in it by themselves.
  table.dense_attention = nullptr;
  table.pack_dense = nullptr;
  table.packed_bytes = nullptr;
  table.pack_inputs = nullptr;
  return table;
}
constexpr KernelTable kAmx = make_amx();

constexpr KernelTable make_emulated_amx() {
  KernelTable table = kAvx512;
  table.name = "amx_emulated";
  table.needs_bf16_inputs = true;
  table.linear_fp8 = amx_emulated::linear_fp8;
  table.linear_fp4 = amx_emulated::linear_fp4;
  table.linear_bf16 = amx_emulated::linear_bf16;
  return table;
}
constexpr KernelTable kEmulatedAmx = make_emulated_amx();

constexpr KernelTable kAvx2 = {
    .name = "avx2",
    .linear_fp8 = avx2::linear_fp8,
    .linear_fp4 = avx2::linear_fp4,
    .linear_bf16 = avx2::linear_bf16,
    .linear_f32 = avx2::linear_f32,
    .sparse_attention = avx2::sparse_attention,
    .index_scores = avx2::index_scores,
    .rms_norm = avx2::rms_norm,
    .quantise_fp8 = avx2::quantise_fp8,
    .round_bf16 = avx2::round_bf16,
    .rope = avx2::rope,
    .swiglu = avx2::swiglu,
    .softmax_terms = avx2::softmax_terms,
    .collect_above = avx2::collect_above,
    .add = avx2::add,
    .hc_collapse = avx2::hc_collapse,
    .hc_expand = avx2::hc_expand,
};

/// __builtin_cpu_supports also asks whether the operating system saves the registers. F16C came before AVX2 on every
/// processor made, but a virtual machine may hide it.
bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
}
bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

bool has_avx512bf16() {
  return has_avx512() && __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512bf16") &&
         __builtin_cpu_supports("avx512vnni");
}

/// Tries the tiles, and says so where the processor promises what does not work.
bool has_amx() {
  const AmxStatus status = amx_status();
  if (status != AmxStatus::kReady && status != AmxStatus::kUnsupportedByCpu) {
    log_warning("AMX is not used: {}", amx_status_text(status));
  }
  return status == AmxStatus::kReady && has_avx512bf16();
}

/// Every table of this build, best first, with whether this processor and its operating system can run it. A further
/// instruction set is one more line here, and one table above.
struct Candidate {
  const KernelTable* table;
  bool is_runnable;
};

std::array<Candidate, 5> all_candidates() {
  return {Candidate{&kAmx, has_amx()}, Candidate{&kAvx512bf16, has_avx512bf16()}, Candidate{&kAvx512, has_avx512()},
          Candidate{&kAvx2, has_avx2()}, Candidate{&reference_kernels(), true}};
}

/// Filled once, at first use; immutable afterwards. (The style page's exception for the kernel table.)
struct Available {
  std::array<const KernelTable*, std::tuple_size_v<decltype(all_candidates())>> tables{};
  size_t count = 0;
};

const Available& available() {
  static const Available result = [] {
    Available found;
    for (const Candidate& candidate : all_candidates()) {
      if (candidate.is_runnable) found.tables[found.count++] = candidate.table;
    }
    return found;
  }();
  return result;
}

}  // namespace

const KernelTable* emulated_amx_kernels() {
  return has_avx512() ? &kEmulatedAmx : nullptr;
}

std::span<const KernelTable* const> available_kernels() {
  return {available().tables.data(), available().count};
}

const KernelTable& select_kernels(std::string_view name, LinearInputs inputs) {
  std::string names;
  for (const KernelTable* table : available_kernels()) {
    const bool is_fit = inputs == LinearInputs::kExactInBf16 || !table->needs_bf16_inputs;
    if (name == "auto" && is_fit) return *table;
    if (table->name == name) {
      if (is_fit) return *table;
      throw Error(ErrorCode::kUnsupported,
                  "kernels '" + std::string(name) +
                      "' multiply in bfloat16, but these numerics (hp) keep binary32: choose others, or 'auto'");
    }
    names += std::string(names.empty() ? "" : ", ") + std::string(table->name);
  }
  throw Error(ErrorCode::kUnsupported, "kernels '" + std::string(name) + "': this processor can run " + names +
                                           "; choose one of these, or 'auto' for the first");
}

}  // namespace tidepool::kernels
