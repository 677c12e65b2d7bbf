#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/sampler_params.h"

namespace tidepool {

/// What the authors of a checkpoint recommend for sampling: the keys of generation_config.json that mean something
/// here.
struct GenerationDefaults {
  std::optional<double> temperature;
  std::optional<double> top_p;
  std::optional<double> min_p;
  std::optional<double> repetition_penalty;
  std::optional<int64_t> top_k;
  std::vector<int32_t> stop_ids;  ///< eos_token_id, a number or a list of them

  /// SamplingParams' own defaults with these in their place.
  [[nodiscard]] SamplingParams sampling() const;
};

/// Reads generation_config.json; none gives no recommendation. Throws Error: kIo, kCorrupt naming file and key.
[[nodiscard]] GenerationDefaults load_generation_defaults(const std::filesystem::path& file);

/// The same from text; `origin` names it in errors.
[[nodiscard]] GenerationDefaults parse_generation_defaults(std::string_view json, const std::string& origin);

}  // namespace tidepool
