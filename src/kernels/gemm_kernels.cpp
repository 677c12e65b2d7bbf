#include <algorithm>
#include <array>

#include "base/check.h"
#include "kernels/gemm_kernels_internal.h"
#include "kernels/kernel_table_internal.h"

namespace tidepool::kernels {
namespace {

/// A product's kernel goes with the table of the same name: what the processor can run was found out there.
bool is_runnable(std::string_view name) {
  return std::ranges::any_of(available_kernels(), [&](const KernelTable* table) { return table->name == name; });
}

/// Filled once, at first use; immutable afterwards. (The style page's exception for the kernel table.)
struct AvailableGemms {
  std::array<const GemmKernel*, 5> kernels{};
  size_t count = 0;
};

const AvailableGemms& available_gemms() {
  static const AvailableGemms result = [] {
    AvailableGemms found;
    for (const GemmKernel* kernel : {&kAmxGemm, &kAvx512Bf16Gemm, &kAvx512Gemm, &kAvx2Gemm, &kReferenceGemm}) {
      if (is_runnable(kernel->name)) found.kernels[found.count++] = kernel;
    }
    return found;
  }();
  return result;
}

}  // namespace

std::span<const GemmKernel* const> available_gemm_kernels() {
  return {available_gemms().kernels.data(), available_gemms().count};
}

const GemmKernel& select_gemm_kernel(GemmPrecision precision) {
  for (const GemmKernel* kernel : available_gemm_kernels()) {
    if (precision == GemmPrecision::kBf16 || kernel->precision == GemmPrecision::kFloat32) return *kernel;
  }
  TIDEPOOL_CHECK(false, "the scalar kernel runs anywhere");
  return kReferenceGemm;
}

const GemmKernel* emulated_amx_gemm_kernel() {
  return emulated_amx_kernels() != nullptr ? &kEmulatedAmxGemm : nullptr;
}

}  // namespace tidepool::kernels
