#include "kernels/gathered_kernels_internal.h"
#include "kernels/vec_avx2.h"
// After the Vec it is written in.
#include "kernels/gathered_vector.h"

namespace tidepool::kernels {

constinit const GatheredKernels<float> kAvx2Gathered = gathered_table("avx2");

}  // namespace tidepool::kernels
