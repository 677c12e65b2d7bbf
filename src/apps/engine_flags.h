#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "apps/cli_app.h"
#include "engine/generator.h"
#include "session/loaded_model.h"

namespace tidepool {

/// Options of every command that runs a model.
struct EngineFlags {
  std::string model;
  size_t threads = 0;
  std::string isa = "auto";
  std::string numerics = "official";
  std::string replay = "bounded";
  size_t chunk = 512;
  std::optional<int64_t> max_model_len;
  std::string draft = "off";
  std::string kv_cache_dtype = "auto";
};

/// Tokens of a chunk: enough that weights are read seldom, few enough that scratch memory stays small.
inline constexpr size_t kChunkMax = 65'536;
inline constexpr size_t kThreadsMax = 4096;

void add_model_argument(CLI::App& command, std::string& model);
void add_kernel_flags(CLI::App& command, EngineFlags& flags);
/// Both above and the rest.
void add_engine_flags(CLI::App& command, EngineFlags& flags);

/// `--kv-cache-dtype`, for measuring what the cache's own formats cost.
void add_kv_cache_dtype_flag(CLI::App& command, EngineFlags& flags);

/// `--draft`, for commands that write text; auto unless it is given.
void add_draft_flag(CLI::App& command, EngineFlags& flags);
/// What the flag says. `is_seeded`: the seed was given, so the output should follow from it.
[[nodiscard]] DraftOptions draft_options(const EngineFlags& flags, bool is_seeded);

/// Loads, with a progress bar on standard error when it takes long. `progress` hears of it too.
[[nodiscard]] std::unique_ptr<LoadedModel> load_model(const EngineFlags& flags, const LoadProgress& progress = {});

/// Puts the flags that concern generation in place.
void apply_engine_flags(const EngineFlags& flags, GenerationOptions& options);

}  // namespace tidepool
