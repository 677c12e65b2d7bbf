#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "kv/kv_cache.h"
#include "session/loaded_model.h"
#include "text/json.h"

namespace tidepool {

/// The prompt's own text from where a kept context went on differently: at most 80 bytes, cut between characters. Empty
/// when there is no such place or no tokenizer.
[[nodiscard]] std::string text_at_difference(const CacheReport& report, std::span<const int32_t> prompt,
                                             const LoadedModel& model);

/// What became of a prompt in the cache, as answers report it: "tier", "hit", "miss", "replayed", "exact", "end", and
/// with "differs" also "first_difference" and "request_text_there". (docs/kv_cache.md, "What answers say")
[[nodiscard]] Json prompt_cache_json(const CacheReport& report, std::span<const int32_t> prompt,
                                     const LoadedModel& model);

}  // namespace tidepool
