#include "kernels/gathered_kernels_internal.h"
#include "kernels/vec_avx512.h"
// After the Vec it is written in.
#include "kernels/gathered_vector.h"

namespace tidepool::kernels {

constinit const GatheredKernels<float> kAvx512Gathered = gathered_table("avx512");

}  // namespace tidepool::kernels
