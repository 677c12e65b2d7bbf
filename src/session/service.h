#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/error.h"
#include "engine/generator.h"
#include "kv/block_store.h"
#include "kv/kv_cache.h"
#include "session/image_prompt.h"
#include "session/loaded_model.h"
#include "text/chat_request.h"
#include "text/completion_parser.h"

namespace tidepool {

/// A prompt that no template shapes: text in which control tokens count as such, or ids.
struct RawPrompt {
  std::variant<std::string, std::vector<int32_t>> content;
  /// Put the begin-of-sentence token in front of a text that does not begin with it.
  bool adds_bos = true;
};

/// What a request wants of its prompt's continuation, whichever API it came through.
struct ServiceRequest {
  std::variant<ChatRequest, RawPrompt> prompt;
  SamplingParams sampling;  ///< choice i of n is drawn with seed + i
  std::vector<std::string> stops;
  std::vector<int32_t> stop_ids;  ///< besides the model's own
  bool ignores_eos = false;
  bool includes_stop_text = false;
  bool shows_special_tokens = false;  ///< raw prompts only: an assistant's turn never shows them
  int64_t min_tokens = 0;
  std::optional<int64_t> max_tokens;
  size_t choice_count = 1;
  bool wants_logprobs = false;  ///< how many alternatives: sampling.top_logprobs, none given counting as 0
  bool allows_parallel_calls = true;
  std::string cache_salt;
  bool wants_exact_cache = false;
  int priority = 0;  ///< smaller comes first, as in vLLM
  std::optional<std::chrono::steady_clock::time_point> deadline;
};

/// How much a choice took.
struct ChoiceUsage {
  int64_t completion_tokens = 0;
  int64_t reasoning_tokens = 0;
  DraftCounts drafts{};
};

struct ServiceFinish {
  FinishReason reason = FinishReason::kStopToken;
  std::optional<size_t> stop_index;  ///< which of `stops`
  std::optional<int32_t> stop_id;    ///< which of `stop_ids`
  bool has_calls = false;            ///< at least one complete call
  /// Tokens at the end that only repeat the same part; 0 when that are few.
  int64_t repeated_tokens = 0;
  ChoiceUsage usage;
};

/// Hears of one request. Called from the engine's thread, in order, and must not block or throw: hand on and return.
class ServiceListener {
 public:
  ServiceListener() = default;
  ServiceListener(const ServiceListener&) = delete;
  ServiceListener& operator=(const ServiceListener&) = delete;
  virtual ~ServiceListener() = default;

  /// The request was admitted and its prompt looked up; reading begins. Before anything else.
  virtual void on_start(const CacheReport& cache) = 0;
  /// So many of the prompt's tokens are read.
  virtual void on_prompt(int64_t tokens_done, int64_t tokens_total) = 0;
  /// New output of one choice: the tokens, and what they mean. Either may be empty.
  virtual void on_output(size_t choice, std::span<const SampledToken> tokens,
                         std::span<const CompletionEvent> events) = 0;
  virtual void on_finish(size_t choice, const ServiceFinish& finish) = 0;
  /// All choices are over, or the request failed: nothing follows.
  virtual void on_end(const std::optional<Error>& error) = 0;
};

/// Why a request cannot be taken now.
struct Busy {
  enum class Reason : uint8_t { kLoading, kQueueFull, kNoMemory, kDraining } reason = Reason::kQueueFull;
  int retry_after_s = 1;
};

/// A request that cannot be taken now, found out before it was queued. The message says what it lacks.
class ServiceBusy : public Error {
 public:
  ServiceBusy(Busy busy, const std::string& message) : Error(ErrorCode::kResourceExhausted, message), busy_(busy) {}
  [[nodiscard]] const Busy& busy() const noexcept { return busy_; }

 private:
  Busy busy_;
};

class CompiledGrammar;

/// What a request will be, known before it is queued.
struct PreparedRequest {
  ServiceRequest request;
  std::vector<int32_t> prompt_ids;
  PromptImages images;                               ///< of the prompt
  OutputStart output_start = OutputStart::kContent;  ///< of a chat request
  bool has_tools = false;                            ///< the model was shown tools
  std::shared_ptr<const CompiledGrammar> grammar;    ///< what the output is held to; may be null
};

/// How the engine is doing: for health checks and gauges.
struct ServiceStatus {
  int64_t running = 0;  ///< requests whose prompt is read or whose output is written
  int64_t waiting = 0;  ///< requests that are queued
  bool is_draining = false;
  /// Grows as long as the engine is alive: with every product inside of a forward call, however long that call takes,
  /// and every few seconds when there is nothing to do.
  uint64_t progress = 0;
  double kv_used_share = 0;  ///< of the KV budget, 0 to 1
  uint64_t kv_page_bytes = 0;
  uint64_t kv_reserved_bytes = 0;
  uint64_t snapshot_bytes = 0;
  uint64_t repeating_outputs = 0;          ///< choices that came to repeat themselves without end, so far
  uint64_t evicted_pages = 0;              ///< blocks that left RAM for want of room, so far
  std::optional<BlockStore::Stats> store;  ///< of the cache's folder, if there is one
};

/// Runs the requests of many clients on one model: continuous batching, prefix cache, structured output. Thread-safe.
/// Results do not depend on what else is under way.
class Service {
 public:
  Service() = default;
  Service(const Service&) = delete;
  Service& operator=(const Service&) = delete;
  virtual ~Service() = default;

  /// Checks a request and encodes its prompt, without queueing it. Throws Error(kInvalidArgument); the message begins
  /// with the field's path ("messages[2].content: ...") where there is one. Throws Error(kResourceExhausted) naming
  /// both lengths when the prompt leaves no room in the context, or naming --kv-ram when memory never suffices; and
  /// ServiceBusy while the pictures of others take all the memory for pictures.
  [[nodiscard]] virtual PreparedRequest prepare(ServiceRequest request) const = 0;
  /// The ids of a request's prompt, whatever their number: for counting tokens. Throws Error(kInvalidArgument),
  /// and ServiceBusy as prepare().
  [[nodiscard]] virtual std::vector<int32_t> encode(const ServiceRequest& request) const = 0;

  /// Stops its request when it dies, which must not be inside a call of the listener. What was computed stays in the
  /// cache.
  class Ticket {
   public:
    Ticket() = default;
    Ticket(const Ticket&) = delete;
    Ticket& operator=(const Ticket&) = delete;
    virtual ~Ticket() = default;
    /// Asks for the same without waiting for anything; the listener may hear more until the ticket is gone. From any
    /// thread.
    virtual void cancel() = 0;
  };
  using Submitted = std::variant<std::unique_ptr<Ticket>, Busy>;
  /// Queues a request, or says at once why not. `listener` must outlive the ticket; it hears nothing once the ticket's
  /// destructor has returned.
  [[nodiscard]] virtual Submitted submit(PreparedRequest request, ServiceListener& listener) = 0;

  /// Refuses new requests from now on (Busy::Reason::kDraining); those that were taken go on to their end.
  virtual void drain() = 0;
  [[nodiscard]] virtual ServiceStatus status() const = 0;

  /// Text of tokens, special ones included.
  [[nodiscard]] virtual std::string detokenize(std::span<const int32_t> ids) const = 0;
  [[nodiscard]] virtual const LoadedModel& model() const = 0;
  [[nodiscard]] virtual int64_t max_model_len() const = 0;
  /// Nonempty when outputs are replayed from a file instead of sampled: the file's name, for every response to say.
  [[nodiscard]] virtual std::string script_name() const = 0;
};

}  // namespace tidepool
