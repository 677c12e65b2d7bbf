#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/error.h"
#include "engine/continuation.h"
#include "engine/speculation.h"
#include "kernels/runtime.h"
#include "kv/kv_cache.h"
#include "model/model.h"

namespace tidepool {

/// A prompt and how to continue it, once or several times.
struct SequenceRequest {
  std::vector<InputToken> prompt;
  std::vector<ImageSpan> images;  ///< of the prompt
  /// Embeddings of the prompt's image positions, asked for on the scheduler's thread; null where there are none.
  std::shared_ptr<ImageRowSource> image_rows;
  /// `context_max`, `replay` and `chunk` are the scheduler's to set; `constraint` is not looked at. Choice i draws with
  /// seed + i.
  GenerationOptions generation;
  size_t choice_count = 1;
  /// One for each choice, or none at all.
  std::vector<std::unique_ptr<LogitsConstraint>> constraints;
  std::string cache_salt;
  /// The result must not depend on what the cache held: whole replays only, and nothing behind a bounded one.
  bool wants_exact_cache = false;
  int priority = 0;  ///< smaller comes first
  std::optional<std::chrono::steady_clock::time_point> deadline;
};

/// Hears of one request. Called from the scheduler's thread, in order; must neither block nor throw.
class SequenceListener {
 public:
  enum class Verdict : uint8_t { kGoOn, kEnough };

  SequenceListener() = default;
  SequenceListener(const SequenceListener&) = delete;
  SequenceListener& operator=(const SequenceListener&) = delete;
  virtual ~SequenceListener() = default;

  /// The request was admitted and its prompt looked up; reading begins.
  virtual void on_start(const CacheReport& cache) = 0;
  virtual void on_prompt(int64_t tokens_done, int64_t tokens_total) = 0;
  /// The next token of a choice; `finish` when it is the last one. kEnough ends the choice (kStopText).
  [[nodiscard]] virtual Verdict on_token(size_t choice, const SampledToken& token,
                                         std::optional<FinishReason> finish) = 0;
  struct ChoiceEnd {
    FinishReason reason = FinishReason::kStopToken;
    int64_t tokens = 0;
    DraftCounts drafts{};
  };
  virtual void on_choice_end(size_t choice, const ChoiceEnd& end) = 0;
  /// Nothing follows. An error when the request failed: kCancelled for a deadline that passed or a scheduler that
  /// stopped.
  virtual void on_end(const std::optional<Error>& error) = 0;
};

struct SchedulerOptions {
  size_t max_num_seqs = 16;             ///< choices under way at once
  size_t max_num_batched_tokens = 512;  ///< rows of a forward call; more than max_num_seqs
  double max_prefill_share = 0.5;       ///< see PrefillBudget
  int64_t max_model_len = 0;            ///< prompt and output; 0: what the model was made for
  size_t queue_limit = 256;             ///< requests that wait; with 0 only what can begin at once is taken
  Replay replay = Replay::kBounded;
  /// kAuto drafts greedy choices only, as what it decides depends on the others; kFixed drafts every step of all. So no
  /// result depends on neighbours either way. kFixed needs a model with a draft head.
  DraftOptions drafts{};
  std::function<std::chrono::steady_clock::time_point()> now{};  ///< for tests; steady time otherwise
};

/// Why a request was not taken.
struct Refusal {
  enum class Reason : uint8_t { kQueueFull, kNoMemory, kDraining } reason = Reason::kQueueFull;
  int retry_after_s = 1;
};

/// Runs many sequences at once on one model: each forward call takes a step of those that write and chunks of prompts
/// that are read. What a request gives does not depend on the others. Thread-safe; has a thread of its own, which is
/// the only one that may use the runtime meanwhile, and loads cached context on further ones.
class Scheduler {
 public:
  /// What it works with; all borrowed. `cache` may be null: nothing is reused, and memory is not counted.
  struct Engine {
    const Model& model;
    const Runtime& runtime;
    KvCache* cache = nullptr;
  };
  /// Measures the machine when drafts are kAuto, which takes a second or two. Throws Error: kInvalidArgument naming the
  /// option that is out of range, kUnsupported for drafts of a fixed length without a draft head.
  Scheduler(const Engine& engine, SchedulerOptions options);
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;
  /// Ends what is under way with Error(kCancelled); what was computed stays in the cache.
  ~Scheduler();

  /// Stops its request when it dies, within one forward call; what was computed stays in the cache. May outlive the
  /// scheduler.
  class Ticket {
   public:
    Ticket() = default;
    Ticket(const Ticket&) = delete;
    Ticket& operator=(const Ticket&) = delete;
    virtual ~Ticket() = default;
    /// Asks for the same without waiting for anything; the listener hears Error(kCancelled) at the end, unless the
    /// request was over before. From any thread, also from inside a call of the listener.
    virtual void cancel() = 0;
  };
  using Submitted = std::variant<std::unique_ptr<Ticket>, Refusal>;
  /// Queues a request. `listener` must outlive the ticket and hears nothing once its destructor has returned; a
  /// listener may destroy the ticket itself. Throws Error: kInvalidArgument for options and tokens out of range,
  /// kResourceExhausted when the prompt leaves no room in the context.
  [[nodiscard]] Submitted submit(SequenceRequest request, SequenceListener& listener);

  /// Takes no more requests; those that were taken go on.
  void drain();
  /// Waits until nothing is queued or under way, at most so long. Returns whether that is so.
  bool wait_idle(std::chrono::milliseconds at_most);

  struct Status {
    int64_t running = 0;  ///< requests
    int64_t waiting = 0;
    bool is_draining = false;
    uint64_t forward_calls = 0;
    /// Grows as long as the scheduler's thread is alive: with every product inside of a forward call, however long that
    /// call takes, and every few seconds when there is nothing to do.
    uint64_t progress = 0;
  };
  [[nodiscard]] Status status() const;
  /// With everything filled in.
  [[nodiscard]] const SchedulerOptions& options() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tidepool
