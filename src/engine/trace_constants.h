#pragma once

#include <string>
#include <vector>

#include "engine/trace.h"
#include "engine/trace_input.h"

namespace tidepool {

/// Cases that run no layers: Engram's constants and row ids (kEngram), and plans of picture sizes (kImagePlan). Names
/// with nothing to compute go to `not_computed`. Throws Error naming the case where it is malformed or does not fit the
/// model.
[[nodiscard]] std::vector<TraceTensor> trace_constants(const Model& model, const SafetensorsFile& test_case,
                                                       TraceKind kind, const std::vector<WantedTensor>& outputs,
                                                       std::vector<std::string>& not_computed);

}  // namespace tidepool
