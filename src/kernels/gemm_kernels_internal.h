#pragma once

#include "kernels/gemm.h"

/// The kernels of each instruction set. Each may be called only where the processor has the set: gemm_kernels.cpp
/// decides.
namespace tidepool::kernels {

extern const GemmKernel kReferenceGemm;
extern const GemmKernel kAvx2Gemm;
extern const GemmKernel kAvx512Gemm;
extern const GemmKernel kAvx512Bf16Gemm;
extern const GemmKernel kAmxGemm;
extern const GemmKernel kEmulatedAmxGemm;

}  // namespace tidepool::kernels
