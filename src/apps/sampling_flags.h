#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "apps/cli_app.h"
#include "engine/generator.h"
#include "session/generation_defaults.h"

namespace tidepool {

/// Options that say how an answer is chosen and when it ends, under vLLM's names.
struct SamplingFlags {
  std::optional<double> temperature;
  std::optional<double> top_p;
  std::optional<int64_t> top_k;
  std::optional<double> min_p;
  std::optional<double> presence_penalty;
  std::optional<double> frequency_penalty;
  std::optional<double> repetition_penalty;
  std::vector<std::string> logit_bias;  ///< "ID:BIAS"
  std::optional<uint64_t> seed;
  std::optional<int64_t> max_tokens;
  std::optional<int64_t> min_tokens;
  bool ignores_end = false;
  std::vector<std::string> stops;
};

/// As many as the protocols allow.
inline constexpr size_t kStopsMax = 16;

void add_sampling_flags(CLI::App& command, SamplingFlags& flags);

/// Puts the flags in place, over the defaults the model recommends; a seed that is not given is drawn.
/// Throws Error(kInvalidArgument).
void apply_sampling_flags(const SamplingFlags& flags, const GenerationDefaults& defaults, GenerationOptions& options);

}  // namespace tidepool
