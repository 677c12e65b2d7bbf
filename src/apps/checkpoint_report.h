#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apps/machine.h"
#include "formats/checkpoint.h"
#include "model/layer_table.h"

namespace tidepool {

/// Parameters and bytes of one part of a checkpoint. Scales are bytes, not parameters.
struct PartSize {
  std::string name;
  uint64_t parameters = 0;
  uint64_t bytes = 0;
};

struct DtypeSize {
  Dtype dtype = Dtype::kF32;
  uint64_t tensors = 0;
  uint64_t bytes = 0;
};

/// What a sequence of some length keeps.
struct ContextSize {
  int64_t tokens = 0;
  uint64_t kv_bytes = 0;  ///< that grow with the tokens
};

/// What running the model takes, against what this machine has.
struct MemoryPlan {
  uint64_t weight_bytes = 0;
  uint64_t table_bytes = 0;     ///< of them, Engram tables: read by row, so they need not be in memory
  uint64_t token_bytes = 0;     ///< KV of one token
  uint64_t sequence_bytes = 0;  ///< beside it, of one sequence whatever its length
  std::vector<ContextSize> contexts;
  Machine machine;
  std::string verdict;
};

/// All that `inspect` shows. Made from names and shapes; no tensor's data is touched.
struct CheckpointReport {
  ModelConfig config;
  LayerTable layers;
  std::vector<PartSize> parts;  ///< backbone, Engram tables, Engram projections, DSpark, vision; those that exist
  std::vector<DtypeSize> dtypes;
  uint64_t tensors = 0;
  MemoryPlan plan;
};

[[nodiscard]] CheckpointReport make_checkpoint_report(const Checkpoint& checkpoint, const Machine& machine);

/// Parameters with a unit: "552B", "196.6B", "14.2B", "0.485B", "3.21M". Off by less than 0.6 %.
[[nodiscard]] std::string format_parameters(uint64_t parameters);
/// Bytes with a decimal unit and three or four digits: "510.3 GB", "890 B".
[[nodiscard]] std::string format_bytes(uint64_t bytes);
/// "1,048,576".
[[nodiscard]] std::string format_count(uint64_t count);

}  // namespace tidepool
