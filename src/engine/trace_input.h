#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "engine/trace.h"
#include "engine/trace_images.h"
#include "formats/safetensors.h"
#include "kv/sequence_state.h"

/// What a trace case asks for: its inputs and the outputs it names.
namespace tidepool {

enum class TraceKind : uint8_t { kPrefill, kDecode, kGreedy, kDraft, kImage, kEngram, kImagePlan };

/// Which model computes an output: "hp." and "_hp" names, "_noactq" names, all others.
enum class TraceVariant : uint8_t { kOfficial, kHp, kNoActivationGrid };

/// One output tensor of the case.
struct WantedTensor {
  std::string name;
  std::string base;    ///< without "hp.", "_hp", picture and layer
  int64_t layer = -1;  ///< of the vision tower, with a picture
  int64_t image = -1;  ///< the picture it belongs to
  TraceVariant variant = TraceVariant::kOfficial;
  Dtype dtype = Dtype::kF32;
  std::vector<int64_t> shape;
};

/// The case's inputs.
struct TraceInput {
  TraceKind kind = TraceKind::kPrefill;
  std::vector<InputToken> tokens;  ///< all that are given
  int64_t prompt_length = 0;
  std::vector<TraceImage> images;
  /// Draft cases: for each round the anchor and the drafts to follow, -1 where the model's own choice is; empty when
  /// all are its own. [rounds, 1 + block]
  std::vector<int64_t> draft_ids;
  std::optional<std::vector<int64_t>> rows;  ///< positions, when only some are asked for
};

/// Throws Error naming the case and what it lacks or what does not fit the model.
[[nodiscard]] TraceInput read_trace_input(const SafetensorsFile& test_case, const ModelConfig& config);

/// The outputs to compute under `numerics`; names with nothing to compute go to `not_computed`.
[[nodiscard]] std::vector<WantedTensor> wanted_tensors(const SafetensorsFile& test_case,
                                                       TraceOptions::Numerics numerics,
                                                       std::vector<std::string>& not_computed);

/// An I32 or I64 tensor of the case as numbers.
[[nodiscard]] std::vector<int64_t> read_trace_ints(const SafetensorsFile& test_case, const std::string& name);

/// Throws Error(code) that begins with the case's path.
[[noreturn]] void refuse_case(const SafetensorsFile& test_case, ErrorCode code, const std::string& what);

}  // namespace tidepool
