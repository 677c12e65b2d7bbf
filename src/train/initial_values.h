#pragma once

#include <cstdint>

#include "train/parameter_set.h"

namespace tidepool {

/// Sets every parameter to its value before training, a function of `seed`, its name and the config alone:
///  - norms and the factors of Engram's gates are 1; biases and sinks 0;
///  - other matrices are uniform with standard deviation 0.02, those that write to the residual streams (last
///    projections of attention and experts) less by the square root of the number of sub-blocks, so that the streams
///    start out as the embedding;
///  - hyper-connections start near a static map, their scales being 0.01: B near the identity, C near 1, and most of A
///    on one stream, another one for each sub-block, or the streams would stay copies of each other.
template <typename Real>
void initialise(ParameterSet<Real>& parameters, const ModelConfig& config, uint64_t seed);

extern template void initialise(ParameterSet<float>&, const ModelConfig&, uint64_t);
extern template void initialise(ParameterSet<double>&, const ModelConfig&, uint64_t);

}  // namespace tidepool
