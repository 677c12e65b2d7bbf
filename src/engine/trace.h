#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "engine/prefill.h"
#include "formats/safetensors.h"
#include "model/model.h"

namespace tidepool {

/// A model in both numerics on one checkpoint, as a trace needs it.
struct TraceSetup {
  const Model& official;                 ///< for plain names
  const Model& hp;                       ///< for "hp." and "_hp" names
  const Model& without_activation_grid;  ///< hp numerics and no activation grid, for "logits_noactq"
  const Runtime& runtime;
};

struct TraceOptions {
  /// Which numerics the case's tensors are computed in. kByName: plain names official, "hp." and "_hp" names hp,
  /// "_noactq" without the activation grid.
  enum class Numerics : uint8_t { kByName, kOfficial, kHp } numerics = Numerics::kByName;
  Replay replay = Replay::kFull;  ///< of the prompt; the reference runs all of it
  size_t chunk = 512;             ///< prompt tokens per forward call; changes no result
};

/// A computed tensor, owned.
struct TraceTensor {
  std::string name;
  Dtype dtype = Dtype::kF32;
  std::vector<int64_t> shape;
  std::vector<std::byte> data;
};

struct TraceResult {
  std::vector<TraceTensor> tensors;
  /// Outputs the case names for which there is nothing to compute: spreads of the reference, a known fault of it, or
  /// numerics that are not asked for.
  std::vector<std::string> not_computed;
};

/// Whether the case's inputs make it one of the draft head. Throws Error when it is of no kind at all.
[[nodiscard]] bool is_draft_case(const SafetensorsFile& test_case);

/// Reads a case (layout of the golden vectors, docs/vectors.md) and computes every output tensor it names.
/// Throws Error for cases of other kinds, malformed ones, or ones that do not fit the models. A draft case needs models
/// made with has_drafts.
[[nodiscard]] TraceResult trace_case(const TraceSetup& setup, const SafetensorsFile& test_case,
                                     const TraceOptions& options);

}  // namespace tidepool
