#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/scheduler.h"
#include "session/service.h"

namespace tidepool {

struct EngineServiceOptions {
  /// `max_model_len` 0: what the model was made for, or as much of it as the KV budget holds.
  SchedulerOptions scheduler;
  /// The cache, with its budget; nothing: no prefix is reused and memory is not counted. Its `model` must be the
  /// fingerprint of the model served.
  std::optional<KvCacheOptions> kv;
  /// Memory for the ids of turns that the server itself wrote.
  size_t kept_turn_bytes = size_t{64} << 20;
  /// Memory for the pictures of requests whose prompts are not read yet; more is refused as Busy(kNoMemory).
  size_t picture_bytes = size_t{2} << 30;
  /// Hosts from which links to pictures are followed (session/image_fetch.h); none: no link is.
  std::vector<std::string> media_hosts;
  /// An output ends, as at its token limit, when so many tokens at its end only repeat the same part (of at most 512
  /// tokens): it would hold its place until the context is full. 0: it never does. Requests that ignore the end of the
  /// turn are left alone, as benchmarks want their tokens whatever they are.
  int64_t repetition_limit = 8192;
  /// Recorded outputs that replace the model's choices (session/script.h); empty: none.
  std::filesystem::path script;
};

/// The service on a loaded model. Takes the model's runtime for itself: nothing else may compute on it meanwhile. When
/// it dies, requests under way end with Error(kCancelled), and what they computed stays in the cache's store.
/// Throws Error: kInvalidArgument for options out of range, naming --kv-ram when max_model_len was asked for and does
/// not fit, or when --kv-ram holds nothing; kUnsupported as Scheduler for drafts; as Script::load for the script.
[[nodiscard]] std::unique_ptr<Service> make_engine_service(std::shared_ptr<const LoadedModel> model,
                                                           EngineServiceOptions options);

}  // namespace tidepool
