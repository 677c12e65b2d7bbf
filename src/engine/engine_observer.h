#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "kv/kv_cache.h"

namespace tidepool {

/// One request from its arrival to its end. Times in seconds.
struct RequestRecord {
  enum class End : uint8_t {
    kStop,    ///< every choice ended by itself or by a stop
    kLength,  ///< a choice met its token limit, or the context was full
    kAbort,   ///< the client left, its deadline passed, or the server stopped
    kError,   ///< the engine could not go on with it
  } end = End::kStop;
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t generated_tokens = 0;      ///< of all choices
  int64_t generated_tokens_max = 0;  ///< of the longest one
  size_t choices = 1;
  std::optional<int64_t> max_tokens;
  double queue_s = 0;                   ///< until it was admitted, or its end
  std::optional<double> first_token_s;  ///< from arrival to the first token
  double prefill_s = 0;                 ///< from admission to the first token, or its end
  double decode_s = 0;                  ///< from the first token to its end
  double total_s = 0;
};

/// One forward call.
struct ForwardRecord {
  int64_t prompt_tokens = 0;
  int64_t decode_rows = 0;
  double seconds = 0;
};

/// Hears what the engine does, for metrics. Called from the engine's thread: hand on and return, and do not throw.
class EngineObserver {
 public:
  EngineObserver() = default;
  EngineObserver(const EngineObserver&) = delete;
  EngineObserver& operator=(const EngineObserver&) = delete;
  virtual ~EngineObserver() = default;

  virtual void on_forward(const ForwardRecord& record) { (void)record; }
  /// A prompt was looked up in the prefix cache.
  virtual void on_lookup(const CacheReport& report) { (void)report; }
  /// Seconds from a request's arrival to its first token.
  virtual void on_first_token(double seconds) { (void)seconds; }
  /// Seconds between two tokens of one choice.
  virtual void on_token_gap(double seconds) { (void)seconds; }
  /// Of so many drafted tokens the first `accepted` were taken.
  virtual void on_drafts(int64_t proposed, int64_t accepted) {
    (void)proposed;
    (void)accepted;
  }
  virtual void on_request_end(const RequestRecord& record) { (void)record; }
};

}  // namespace tidepool
