#pragma once

#include "kernels/gathered.h"

/// The versions of each instruction set. Each may be called only where the processor has the set: gathered.cpp decides.
namespace tidepool::kernels {

extern const GatheredKernels<float> kAvx2Gathered;
extern const GatheredKernels<float> kAvx512Gathered;

}  // namespace tidepool::kernels
