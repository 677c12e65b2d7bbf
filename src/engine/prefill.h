#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>

#include "kv/kv_cache.h"
#include "model/model.h"

namespace tidepool {

/// How many of a prompt's last positions pass through the decoder. (docs/model.md 1.2, 1.3)
enum class Replay : uint8_t {
  kBounded,  ///< the last `window` positions, as published: cheap and not exact
  kExact,    ///< as many as make the last position's result equal to kFull: window + (layers - 1) * (window - 1)
  kFull,     ///< all of them, as the reference does
};

/// "bounded", "exact" or "full"; throws Error(kInvalidArgument) for anything else.
[[nodiscard]] Replay parse_replay(std::string_view name);

/// First position of the decoder's part when a prompt ends at `prompt_end`: never before `state`'s own length, and
/// going on with its decoder windows where they reach that far.
[[nodiscard]] int64_t replay_begin(const Model& model, const SequenceState& state, int64_t prompt_end, Replay replay);

/// Says in `query` what a prompt that is read with `replay` may take from the cache: bounded ones anything, others only
/// what no bounded replay lies behind, with the windows they need.
void set_replay(KvCache::Query& query, Replay replay);

struct PrefillOptions {
  Replay replay = Replay::kBounded;
  /// Tokens per forward call; bounds scratch memory. Results do not depend on it.
  size_t chunk = 512;
  /// Logits wanted: of the last position only, or of every position the decoder sees.
  enum class Logits : uint8_t { kLast, kAll } logits = Logits::kLast;
  Probe* probe = nullptr;
  /// Embeddings of image positions; borrowed. May be null where there are none.
  ImageRowSource* images = nullptr;
};

/// Called after each chunk with the first position of `logits` (rows for consecutive positions; none when the chunk
/// gave none) and the number of tokens done. Return false to stop; the sequence stays usable, at the tokens done.
using PrefillProgress = std::function<bool(int64_t first, Span2d<const float> logits, size_t tokens_done)>;

/// Runs `tokens` (at least one) behind what `state` holds. Returns false when `progress` stopped it.
/// `arena` is scratch: logits are valid during the call of `progress` only.
bool prefill(const Model& model, const Runtime& runtime, Arena& arena, SequenceState& state,
             std::span<const InputToken> tokens, const PrefillOptions& options, const PrefillProgress& progress);

}  // namespace tidepool
