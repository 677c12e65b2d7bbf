#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "apps/checkpoint_report.h"
#include "text/json.h"

namespace tidepool {

/// What the model would run on here.
struct InspectedEngine {
  std::string kernels;
  std::vector<std::string> available_kernels;  ///< best first
  size_t threads = 0;
  std::string amx;  ///< whether tiles are used, or why not
};

/// What `inspect --json` prints. (docs/commands.md)
[[nodiscard]] Json inspect_json(const CheckpointReport& report, const InspectedEngine& engine);

}  // namespace tidepool
