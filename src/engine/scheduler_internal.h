#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <thread>
#include <utility>
#include <vector>

#include "base/arena.h"
#include "engine/batch.h"
#include "engine/draft_planner.h"
#include "engine/scheduler.h"

namespace tidepool::scheduling {

using Clock = std::chrono::steady_clock;

/// Lets calls through to a listener until it is closed; closing waits for a call that is under way. No lock is held
/// during the call.
class ListenerGate {
 public:
  explicit ListenerGate(SequenceListener& listener) : listener_(listener) {}

  /// body(listener), unless closed. One thread at a time.
  template <typename Body>
  void call(Body&& body) {
    if (!enter()) return;
    std::forward<Body>(body)(listener_);
    leave();
  }
  /// From inside a call it returns at once: the call itself is the last one.
  void close();

 private:
  [[nodiscard]] bool enter();
  void leave();

  SequenceListener& listener_;
  std::mutex mutex_;
  std::condition_variable has_left_;
  bool is_closed_ = false;
  std::optional<std::thread::id> caller_;  ///< of a call under way
};

/// One output of a request.
struct Choice {
  Choice(SequenceState sequence, Continuation how) : state(std::move(sequence)), continuation(std::move(how)) {}

  std::optional<SequenceState> state;  ///< nothing once it is over
  Continuation continuation;
  Speculation speculation{};  ///< of its next step
  DraftCounts draft_counts{};
  std::optional<int32_t> last_token{};  ///< taken and not yet run
  int64_t published = 0;                ///< tokens of the sequence
  int64_t delivered = 0;                ///< tokens that the listener has heard of
  uint64_t last_service = 0;
  SequenceListener::ChoiceEnd end{};

  [[nodiscard]] bool is_over() const { return !state; }
};

/// One request on its way. Shared with its ticket, which touches the gate and `is_cancelled` only; everything else
/// belongs to the scheduler's thread, and while it loads to the loader.
struct Job {
  Job(SequenceRequest what, SequenceListener& listener) : request(std::move(what)), gate(listener) {}

  SequenceRequest request;
  ListenerGate gate;
  /// Relaxed: the wake-up that follows it orders it.
  std::atomic<bool> is_cancelled = false;

  enum class Stage : uint8_t { kWaiting, kLoading, kReading, kWriting, kEnded } stage = Stage::kWaiting;
  uint64_t arrival = 0;
  std::optional<Clock::time_point> admitted_at{};
  std::optional<Clock::time_point> first_token_at{};

  std::optional<KvCache::Resumed> resumed{};  ///< by the loader
  std::optional<Error> load_error{};          ///< by the loader
  CacheReport report{};
  KvCache::Reservation reservation{};
  /// While it waits for memory: blocks of its prompt that others held anyway when it was looked up.
  std::optional<int64_t> shared_blocks{};
  std::vector<Choice> choices{};  ///< one until the prompt is read
  int64_t decoder_from = 0;

  [[nodiscard]] int64_t prompt_length() const { return static_cast<int64_t>(request.prompt.size()); }
  [[nodiscard]] KvCache::Reservation* reserved() { return reservation.blocks() > 0 ? &reservation : nullptr; }
};
using JobPtr = std::shared_ptr<Job>;

/// What other threads and the scheduler's share. Outlives the scheduler as long as a ticket does.
struct Mailbox {
  /// Turns of the scheduler's thread. Relaxed: whoever reads it looks for change only.
  std::atomic<uint64_t> turns = 0;
  mutable std::mutex mutex;
  std::condition_variable news;  ///< for the scheduler's thread
  std::condition_variable idle;  ///< nothing is queued or under way
  // All below under `mutex`.
  std::vector<JobPtr> arrivals;
  std::vector<JobPtr> loaded;
  bool has_cancels = false;
  bool is_stopping = false;
  uint64_t arrival_count = 0;
  Scheduler::Status status;
  size_t free_places = 0;           ///< choices that could begin now
  bool is_short_of_memory = false;  ///< the first that waits, waits for memory
  double request_seconds = 0;       ///< how long a request takes, from admission to its end; a running average
};

/// How often the blocks of a long prompt, or of all outputs of a request, are published while they come to be: others
/// that begin alike need not wait for the end, little memory is in use that is not counted as pages, and the keys of
/// the whole text are not hashed for every step.
inline constexpr int64_t kPublishEvery = 32 * kBlockTokens;

/// One forward call.
struct ForwardRecord {
  int64_t prompt_tokens = 0;
  int64_t decode_rows = 0;
  double seconds = 0;
};

/// Looks prompts up in the cache, which may read from disk, while sequences go on.
class Loader {
 public:
  /// Both must outlive it. `cache` is not null.
  Loader(KvCache& cache, Mailbox& mailbox, size_t threads);
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;
  ~Loader();
  void load(JobPtr job);

 private:
  void run(const std::stop_token& stop);
  void load_one(Job& job);

  KvCache& cache_;
  Mailbox& mailbox_;
  std::mutex mutex_;
  std::condition_variable_any news_;
  std::deque<JobPtr> queue_;
  std::vector<std::jthread> threads_;
};

/// The scheduler's own thread: everything that happens to jobs.
class Loop {
 public:
  Loop(const Scheduler::Engine& engine, const SchedulerOptions& options, Mailbox& mailbox);

  /// Until the mailbox says to stop; ends what is left.
  void run();

 private:
  [[nodiscard]] Clock::time_point now() const { return options_.now(); }

  // News from other threads (scheduler_loop.cpp).
  [[nodiscard]] bool has_runnable() const;
  [[nodiscard]] bool take_news();
  [[nodiscard]] std::chrono::milliseconds wait_limit() const;
  void end_cancelled();
  void end_all();
  void drop_ended();
  void publish_status();

  // From the queue to reading.
  void enqueue(JobPtr job);
  void admit();
  [[nodiscard]] size_t used_slots() const;
  void start(const JobPtr& job, SequenceState state);
  void begin_reading(Job& job, SequenceState state);
  [[nodiscard]] int64_t tokens_needed(const Job& job) const;
  [[nodiscard]] bool reserve(Job& job, const SequenceState& state) const;
  void wait_for_memory(const JobPtr& job, SequenceState state);
  [[nodiscard]] bool has_memory_for(const Job& job) const;

  // A forward call (scheduler_batch.cpp).
  struct Row {
    JobPtr job;
    size_t choice = 0;
    int64_t tokens = 0;
    std::vector<InputToken> step{};           ///< what one that writes reads
    std::span<const ImageRows> image_rows{};  ///< of one that reads
  };
  struct Draw {
    JobPtr job;
    size_t choice = 0;
    size_t logits_row = 0;  ///< the first
    std::vector<GenerationStep> steps{};
    std::vector<double> survival{};  ///< of the tokens proposed
    size_t drafted = 0;              ///< how many these are
    size_t accepted = 0;             ///< of these
    std::optional<Error> error{};
  };
  [[nodiscard]] std::vector<Row> plan();
  void run_batch();
  [[nodiscard]] std::vector<Row> prepare_rows(std::vector<Row> planned);
  [[nodiscard]] Span2d<const float> run_rows(const std::vector<Row>& rows);
  ForwardRecord note_forward(const std::vector<Row>& rows, double seconds);
  [[nodiscard]] std::vector<Draw> note_rows(const std::vector<Row>& rows);
  void note_read_prompt(Job& job);
  void draw_all(std::vector<Draw>& draws, Span2d<const float> logits);
  void take_steps(Draw& draw, Sampler& sampler, Span2d<const float> logits);
  void deliver(const Draw& draw);
  void publish(Job& job, Choice& choice) const;
  [[nodiscard]] std::optional<FinishReason> deliver_step(Job& job, size_t choice, const GenerationStep& step);

  // Drafts (scheduler_drafts.cpp).
  void start_drafting();
  void propose_drafts();
  void draft_all(std::span<const DraftingRequest> requests);
  [[nodiscard]] bool keeps_draft_rows(const Job& job, size_t sequences) const;
  [[nodiscard]] std::vector<Row> choices_to_draft();
  void note_drafts(const std::vector<Draw>& draws, const ForwardRecord& record);

  // Ends.
  void end_choice(Job& job, size_t index, FinishReason reason);
  void end_job(Job& job, const std::optional<Error>& error);
  void cancel(Job& job, const Error& error);
  void note_duration(const Job& job);

  Scheduler::Engine engine_;
  const SchedulerOptions& options_;
  Mailbox& mailbox_;
  std::optional<Loader> loader_;
  Arena arena_;
  std::vector<Sampler> samplers_;  ///< one for each thread of the pool
  Arena draft_arena_;
  std::optional<ModelDrafter> drafter_;
  std::optional<DraftPlanner> planner_;  ///< with DraftOptions::Mode::kAuto
  double draft_seconds_ = 0;             ///< of the draft pass before the next step
  bool has_draft_pass_ = false;
  bool has_warned_of_drafts_ = false;
  PrefillBudget budget_;
  std::vector<JobPtr> waiting_;
  std::vector<JobPtr> active_;  ///< loading, reading, writing
  uint64_t services_ = 0;       ///< parts of forward calls given out so far
  uint64_t forward_calls_ = 0;
  bool has_free_slots_ = false;    ///< something ended since the queue was looked at
  bool waits_for_memory_ = false;  ///< the first of the queue does
};

}  // namespace tidepool::scheduling
