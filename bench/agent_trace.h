#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "kv/kv_cache.h"
#include "session/loaded_model.h"

namespace tidepool::bench {

/// One request of the trace.
struct AgentTraceTurn {
  std::string session;      ///< "main", "agent 1", "title", ...
  int64_t new_tokens = 0;   ///< of the prompt, behind what any earlier request or answer had in common with it
  int64_t read_tokens = 0;  ///< of the prompt, that passed through the encoder: new ones and those read again
  int64_t output_tokens = 0;
  CacheReport cache;
};

struct AgentTraceResult {
  std::vector<AgentTraceTurn> turns;
  int64_t token_bytes = 0;      ///< of global KV a token, as the layout has it (890 at released shapes)
  uint64_t written_bytes = 0;   ///< to disk, blocks and snapshots
  uint64_t snapshot_bytes = 0;  ///< of these, snapshots
  int64_t snapshots = 0;
};

/// Plays an agent's day on a small model with contexts of at least 1,024 tokens: a main session that gets tool results,
/// two sub-agents, requests for a title in between, an edit of the last answer every 5 turns, and the program starting
/// anew in the middle, with nothing left but `folder`. Deterministic.
[[nodiscard]] AgentTraceResult run_agent_trace(const LoadedModel& model, const std::filesystem::path& folder);

}  // namespace tidepool::bench
