#include "engine/scheduler.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <thread>
#include <utility>

#include "base/check.h"
#include "engine/scheduler_internal.h"

namespace tidepool {
namespace scheduling {

bool ListenerGate::enter() {
  const std::lock_guard lock(mutex_);
  if (is_closed_) return false;
  caller_ = std::this_thread::get_id();
  return true;
}

void ListenerGate::leave() {
  {
    const std::lock_guard lock(mutex_);
    caller_.reset();
  }
  has_left_.notify_all();
}

void ListenerGate::close() {
  std::unique_lock lock(mutex_);
  is_closed_ = true;
  if (caller_ == std::this_thread::get_id()) return;
  has_left_.wait(lock, [this] { return !caller_; });
}

namespace {

class JobTicket final : public Scheduler::Ticket {
 public:
  JobTicket(JobPtr job, std::shared_ptr<Mailbox> mailbox) : job_(std::move(job)), mailbox_(std::move(mailbox)) {}
  JobTicket(const JobTicket&) = delete;
  JobTicket& operator=(const JobTicket&) = delete;
  ~JobTicket() override {
    job_->gate.close();
    cancel();
  }
  void cancel() override {
    job_->is_cancelled.store(true, std::memory_order_relaxed);
    {
      const std::lock_guard lock(mailbox_->mutex);
      mailbox_->has_cancels = true;
    }
    mailbox_->news.notify_one();
  }

 private:
  JobPtr job_;
  std::shared_ptr<Mailbox> mailbox_;
};

[[noreturn]] void refuse(std::string_view field, const auto& value, std::string_view rule) {
  throw Error(ErrorCode::kInvalidArgument, fmt::format("{} is {}; it must be {}", field, value, rule));
}

SchedulerOptions complete(SchedulerOptions options, const ModelConfig& config) {
  if (options.max_model_len == 0) options.max_model_len = config.max_position_embeddings;
  if (!options.now) options.now = [] { return Clock::now(); };
  if (options.max_model_len < 2 || options.max_model_len > config.max_position_embeddings) {
    refuse("--max-model-len", options.max_model_len,
           fmt::format("from 2 to {}, what the model was made for", config.max_position_embeddings));
  }
  if (options.max_num_seqs < 1) refuse("--max-num-seqs", options.max_num_seqs, "at least 1");
  const size_t step_rows = 1 + drafts_max(options.drafts, config);
  if (options.max_num_batched_tokens <= options.max_num_seqs * step_rows) {
    refuse("--max-num-batched-tokens", options.max_num_batched_tokens,
           fmt::format("more than {}, so that prompts are read while --max-num-seqs, {}, choices write {} rows each",
                       options.max_num_seqs * step_rows, options.max_num_seqs, step_rows));
  }
  if (!(options.max_prefill_share >= 0 && options.max_prefill_share <= 1))
    refuse("--max-prefill-share", options.max_prefill_share, "from 0 to 1");
  return options;
}

}  // namespace
}  // namespace scheduling

class Scheduler::Impl {
 public:
  Impl(const Engine& engine, SchedulerOptions options)
      : config_(engine.model.config()),
        pool_(engine.runtime.pool),
        options_(scheduling::complete(std::move(options), config_)),
        mailbox_(std::make_shared<scheduling::Mailbox>()),
        loop_(engine, options_, *mailbox_) {
    mailbox_->free_places = options_.max_num_seqs;
    thread_ = std::thread([this] { loop_.run(); });
  }
  ~Impl() {
    {
      const std::lock_guard lock(mailbox_->mutex);
      mailbox_->is_stopping = true;
    }
    mailbox_->news.notify_one();
    thread_.join();
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  Submitted submit(SequenceRequest request, SequenceListener& listener) {
    finish_request(request);
    const auto job = std::make_shared<scheduling::Job>(std::move(request), listener);
    {
      const std::lock_guard lock(mailbox_->mutex);
      if (const std::optional<Refusal> refusal = refusal_now()) return *refusal;
      job->arrival = ++mailbox_->arrival_count;
      mailbox_->arrivals.push_back(job);
      ++mailbox_->status.waiting;
    }
    mailbox_->news.notify_one();
    return std::make_unique<scheduling::JobTicket>(job, mailbox_);
  }

  void drain() {
    const std::lock_guard lock(mailbox_->mutex);
    mailbox_->status.is_draining = true;
  }

  bool wait_idle(std::chrono::milliseconds at_most) {
    std::unique_lock lock(mailbox_->mutex);
    return mailbox_->idle.wait_for(lock, at_most,
                                   [this] { return mailbox_->status.running == 0 && mailbox_->status.waiting == 0; });
  }

  [[nodiscard]] Status status() const {
    const std::lock_guard lock(mailbox_->mutex);
    Status status = mailbox_->status;
    status.progress = mailbox_->turns.load(std::memory_order_relaxed) + pool_.runs();
    return status;
  }
  [[nodiscard]] const SchedulerOptions& options() const { return options_; }

 private:
  /// Fills in what the scheduler decides, and refuses what could not run.
  void finish_request(SequenceRequest& request) const {
    GenerationOptions& generation = request.generation;
    generation.context_max = options_.max_model_len;
    generation.replay =
        request.wants_exact_cache && options_.replay == Replay::kBounded ? Replay::kExact : options_.replay;
    generation.constraint = nullptr;
    check_generation_options(config_, generation);
    TIDEPOOL_CHECK(request.constraints.empty() || request.constraints.size() == request.choice_count,
                   "each choice has a constraint of its own");
    if (request.choice_count < 1 || request.choice_count > options_.max_num_seqs) {
      scheduling::refuse(
          "n", request.choice_count,
          fmt::format("from 1 to {}, the choices under way at once (--max-num-seqs)", options_.max_num_seqs));
    }
    if (request.prompt.empty())
      throw Error(ErrorCode::kInvalidArgument, "the prompt is empty; give at least one token");
    for (const InputToken& token : request.prompt) {
      if (token.id >= 0 && token.id < config_.vocab_size) continue;
      scheduling::refuse("a token of the prompt", token.id,
                         fmt::format("a token of the model, 0 to {}", config_.vocab_size - 1));
    }
    const auto length = static_cast<int64_t>(request.prompt.size());
    if (length >= options_.max_model_len)
      throw Error(ErrorCode::kResourceExhausted, no_room_message(config_, length, options_.max_model_len));
  }

  /// Why no request can be taken now. Under the mailbox's lock.
  [[nodiscard]] std::optional<Refusal> refusal_now() const {
    constexpr double kRetryMaxSeconds = 60;
    const Status& status = mailbox_->status;
    const double rounds = static_cast<double>(status.waiting + 1) / static_cast<double>(options_.max_num_seqs);
    Refusal refusal;
    refusal.retry_after_s =
        static_cast<int>(std::clamp(std::ceil(mailbox_->request_seconds * rounds), 1.0, kRetryMaxSeconds));
    if (status.is_draining) {
      refusal.reason = Refusal::Reason::kDraining;
      return refusal;
    }
    // All come through the queue; those that will leave it at once do not wait.
    if (status.waiting < static_cast<int64_t>(options_.queue_limit + mailbox_->free_places)) return std::nullopt;
    refusal.reason = mailbox_->is_short_of_memory ? Refusal::Reason::kNoMemory : Refusal::Reason::kQueueFull;
    return refusal;
  }

  const ModelConfig& config_;
  const ThreadPool& pool_;
  SchedulerOptions options_;
  std::shared_ptr<scheduling::Mailbox> mailbox_;
  scheduling::Loop loop_;
  std::thread thread_;
};

Scheduler::Scheduler(const Engine& engine, SchedulerOptions options)
    : impl_(std::make_unique<Impl>(engine, std::move(options))) {}

Scheduler::~Scheduler() = default;

Scheduler::Submitted Scheduler::submit(SequenceRequest request, SequenceListener& listener) {
  return impl_->submit(std::move(request), listener);
}

void Scheduler::drain() {
  impl_->drain();
}

bool Scheduler::wait_idle(std::chrono::milliseconds at_most) {
  return impl_->wait_idle(at_most);
}

Scheduler::Status Scheduler::status() const {
  return impl_->status();
}

const SchedulerOptions& Scheduler::options() const {
  return impl_->options();
}

}  // namespace tidepool
