#include <algorithm>
#include <utility>

#include "engine/scheduler_internal.h"

namespace tidepool::scheduling {
namespace {

using std::chrono::milliseconds;

/// Lookups that may wait for the disk at once; those that find everything in memory take no time.
constexpr size_t kLoaderThreads = 2;
/// Memory may also come free elsewhere than at the end of a job: a lookup that nobody wants any more, say.
constexpr milliseconds kMemoryRetry{50};
/// How often an idle scheduler lets the cache drop what is too old.
constexpr milliseconds kExpireEvery{5000};

/// In which the first of the queue comes first.
bool is_before(const JobPtr& a, const JobPtr& b) {
  return std::pair(a->request.priority, a->arrival) < std::pair(b->request.priority, b->arrival);
}

}  // namespace

Loop::Loop(const Scheduler::Engine& engine, const SchedulerOptions& options, Mailbox& mailbox)
    : engine_(engine),
      options_(options),
      mailbox_(mailbox),
      samplers_(engine.runtime.pool.thread_count()),
      budget_(options.max_prefill_share, static_cast<int64_t>(options.max_num_batched_tokens)) {
  start_drafting();
  if (engine_.cache != nullptr) loader_.emplace(*engine_.cache, mailbox_, kLoaderThreads);
}

void Loop::run() {
  while (take_news()) {
    end_cancelled();
    admit();
    drop_ended();
    publish_status();
    if (!has_runnable()) continue;
    run_batch();
    drop_ended();
    publish_status();
  }
  end_all();
  drop_ended();
  publish_status();
}

bool Loop::has_runnable() const {
  return std::ranges::any_of(active_, [](const JobPtr& job) {
    return job->stage == Job::Stage::kReading || job->stage == Job::Stage::kWriting;
  });
}

/// How long to wait for news at most, when there is nothing to run.
milliseconds Loop::wait_limit() const {
  milliseconds limit = waits_for_memory_ ? kMemoryRetry : kExpireEvery;
  const Clock::time_point at = now();
  for (const std::vector<JobPtr>* jobs : {&waiting_, &active_}) {
    for (const JobPtr& job : *jobs) {
      if (!job->request.deadline) continue;
      const auto left = std::chrono::ceil<milliseconds>(*job->request.deadline - at);
      limit = std::clamp(left, milliseconds(0), limit);
    }
  }
  return limit;
}

/// Takes in what other threads have left, after waiting for it when there is nothing to do. False: stop.
bool Loop::take_news() {
  mailbox_.turns.fetch_add(1, std::memory_order_relaxed);
  std::vector<JobPtr> arrivals;
  std::vector<JobPtr> loaded;
  bool has_waited_in_vain = false;
  {
    std::unique_lock lock(mailbox_.mutex);
    const auto has_news = [this] {
      return mailbox_.is_stopping || mailbox_.has_cancels || !mailbox_.arrivals.empty() || !mailbox_.loaded.empty();
    };
    if (!has_runnable() && !has_free_slots_) has_waited_in_vain = !mailbox_.news.wait_for(lock, wait_limit(), has_news);
    arrivals.swap(mailbox_.arrivals);
    loaded.swap(mailbox_.loaded);
    mailbox_.has_cancels = false;
    if (mailbox_.is_stopping) {
      std::ranges::copy(arrivals, std::back_inserter(waiting_));
      return false;
    }
  }
  if (has_waited_in_vain) {
    waits_for_memory_ = false;
    if (engine_.cache != nullptr) engine_.cache->expire();
  }
  for (JobPtr& job : arrivals)
    enqueue(std::move(job));
  for (const JobPtr& job : loaded) {
    if (job->stage != Job::Stage::kLoading) continue;  // ended meanwhile
    if (job->load_error) {
      end_job(*job, job->load_error);
      continue;
    }
    job->report = job->resumed->report;
    start(job, std::move(job->resumed->state));
    job->resumed.reset();
  }
  return true;
}

void Loop::end_cancelled() {
  const Clock::time_point at = now();
  for (const std::vector<JobPtr>* jobs : {&waiting_, &active_}) {
    for (const JobPtr& job : *jobs) {
      if (job->stage == Job::Stage::kEnded) continue;
      if (job->is_cancelled.load(std::memory_order_relaxed)) {
        cancel(*job, Error(ErrorCode::kCancelled, "the request was cancelled"));
      } else if (job->request.deadline && *job->request.deadline <= at) {
        cancel(*job, Error(ErrorCode::kCancelled, "the request's deadline passed before its answer was complete"));
      }
    }
  }
}

void Loop::end_all() {
  for (const std::vector<JobPtr>* jobs : {&waiting_, &active_}) {
    for (const JobPtr& job : *jobs) {
      if (job->stage != Job::Stage::kEnded) cancel(*job, Error(ErrorCode::kCancelled, "the server is stopping"));
    }
  }
}

void Loop::drop_ended() {
  const auto has_ended = [](const JobPtr& job) { return job->stage == Job::Stage::kEnded; };
  std::erase_if(waiting_, has_ended);
  std::erase_if(active_, has_ended);
}

void Loop::publish_status() {
  bool is_idle = false;
  {
    const std::lock_guard lock(mailbox_.mutex);
    mailbox_.status.running = static_cast<int64_t>(active_.size());
    mailbox_.status.waiting = static_cast<int64_t>(waiting_.size() + mailbox_.arrivals.size());
    mailbox_.status.forward_calls = forward_calls_;
    mailbox_.is_short_of_memory = waits_for_memory_;
    mailbox_.free_places = waits_for_memory_ ? 0 : options_.max_num_seqs - used_slots();
    is_idle = mailbox_.status.running == 0 && mailbox_.status.waiting == 0;
  }
  if (is_idle) mailbox_.idle.notify_all();
}

void Loop::enqueue(JobPtr job) {
  job->stage = Job::Stage::kWaiting;
  waiting_.insert(std::ranges::upper_bound(waiting_, job, is_before), std::move(job));
}

size_t Loop::used_slots() const {
  size_t used = 0;
  for (const JobPtr& job : active_) {
    if (job->stage == Job::Stage::kWriting) {
      used += static_cast<size_t>(std::ranges::count(job->choices, false, &Choice::is_over));
    } else if (job->stage != Job::Stage::kEnded) {
      used += job->request.choice_count;
    }
  }
  return used;
}

/// Moves jobs from the queue to work, strictly in order: a large one is not passed by small ones for ever.
void Loop::admit() {
  has_free_slots_ = false;
  while (!waiting_.empty() && !waits_for_memory_) {
    const JobPtr job = waiting_.front();
    if (job->stage != Job::Stage::kEnded) {
      if (used_slots() + job->request.choice_count > options_.max_num_seqs) return;
      if (!has_memory_for(*job)) {
        waits_for_memory_ = true;
        return;
      }
      active_.push_back(job);
      job->stage = Job::Stage::kLoading;
    }
    waiting_.erase(waiting_.begin());
    if (job->stage == Job::Stage::kEnded) continue;
    if (loader_) {
      loader_->load(job);
    } else {
      job->report.prompt_tokens = job->prompt_length();
      start(job, engine_.model.new_sequence());
    }
  }
}

/// Begins to read the prompt behind what `state` holds; back to the queue when memory does not suffice now.
void Loop::start(const JobPtr& job, SequenceState state) {
  try {
    if (!reserve(*job, state)) return wait_for_memory(job, std::move(state));
  } catch (const Error& error) {
    end_job(*job, error);
    return;
  }
  begin_reading(*job, std::move(state));
}

/// Without the state, whose pages would count as used. What it shares with live sequences is remembered, so that the
/// prompt, which may lie on disk, is looked up again only when there will be room.
void Loop::wait_for_memory(const JobPtr& job, SequenceState state) {
  const int64_t tokens = tokens_needed(*job);
  const int64_t missing = engine_.cache->shortage(state, tokens);
  state = engine_.model.new_sequence();
  // Never below 0, or it would wait for more than all memory.
  job->shared_blocks = std::max<int64_t>(engine_.cache->shortage(state, tokens) - missing, 0);
  waits_for_memory_ = true;
  std::erase(active_, job);
  enqueue(job);
}

bool Loop::has_memory_for(const Job& job) const {
  if (!job.shared_blocks) return true;  // not known before it is looked up
  return engine_.cache->shortage(engine_.model.new_sequence(), tokens_needed(job)) <= *job.shared_blocks;
}

/// Prompt and output of all choices.
int64_t Loop::tokens_needed(const Job& job) const {
  const int64_t length = job.prompt_length();
  const int64_t room = options_.max_model_len - length;
  const int64_t output = std::min(job.request.generation.max_tokens.value_or(room), room);
  // A further choice copies the block in which the prompt ends.
  const auto further = static_cast<int64_t>(job.request.choice_count - 1) * (output + kBlockTokens);
  return length + output + further;
}

bool Loop::reserve(Job& job, const SequenceState& state) const {
  if (engine_.cache == nullptr) return true;
  // All of it is promised, but most requests end long before what they may write: until then it is left to pages that
  // others may come back to.
  const auto partial_blocks = static_cast<int64_t>(job.request.choice_count) * kBlockTokens;
  const int64_t unpublished = kPublishEvery + static_cast<int64_t>(options_.max_num_batched_tokens) + partial_blocks;
  std::optional<KvCache::Reservation> room_found = engine_.cache->reserve(state, tokens_needed(job), unpublished);
  if (!room_found) return false;
  job.reservation = std::move(*room_found);
  return true;
}

void Loop::begin_reading(Job& job, SequenceState state) {
  job.stage = Job::Stage::kReading;
  job.admitted_at = now();
  const int64_t known = state.length();
  job.decoder_from = replay_begin(engine_.model, state, job.prompt_length(), job.request.generation.replay);
  GenerationOptions options = job.request.generation;
  if (!job.request.constraints.empty()) options.constraint = job.request.constraints.front().get();
  Continuation continuation(engine_.model.config(), std::move(options));
  continuation.add_prompt(job.request.prompt);
  job.choices.emplace_back(std::move(state), std::move(continuation));
  job.choices.back().published = known;
  publish_status();  // it waits no more
  job.gate.call([&](SequenceListener& listener) { listener.on_start(job.report); });
}

void Loop::end_choice(Job& job, size_t index, FinishReason reason) {
  Choice& choice = job.choices[index];
  if (engine_.cache != nullptr)
    engine_.cache->snapshot(*choice.state, job.request.images, job.request.cache_salt, job.reserved());
  choice.state.reset();
  has_free_slots_ = true;
  choice.end.reason = reason;
  choice.end.tokens = choice.delivered;
  choice.end.drafts = choice.draft_counts;
  job.gate.call([&](SequenceListener& listener) { listener.on_choice_end(index, choice.end); });
  if (!std::ranges::all_of(job.choices, &Choice::is_over)) return;
  end_job(job, std::nullopt);
}

/// Ends a job whose caller has left, or must not wait any longer. What it computed is kept.
void Loop::cancel(Job& job, const Error& error) {
  if (engine_.cache != nullptr) {
    for (const Choice& choice : job.choices) {
      if (choice.state)
        engine_.cache->publish(*choice.state, job.request.images, job.request.cache_salt, job.reserved());
    }
  }
  end_job(job, error);
}

void Loop::end_job(Job& job, const std::optional<Error>& error) {
  note_duration(job);
  // One that only waited behind another held nothing that the first of the queue waits for.
  const bool frees_memory = job.stage != Job::Stage::kWaiting || waiting_.empty() || waiting_.front().get() == &job;
  job.stage = Job::Stage::kEnded;
  job.choices.clear();
  job.reservation = {};
  has_free_slots_ = true;
  if (frees_memory) waits_for_memory_ = false;
  job.gate.call([&](SequenceListener& listener) { listener.on_end(error); });
}

/// For the time after which a refused request should come back.
void Loop::note_duration(const Job& job) {
  if (!job.first_token_at) return;
  constexpr double kNewest = 0.2;  // a running average over the last handful
  const double taken = std::chrono::duration<double>(now() - *job.admitted_at).count();
  const std::lock_guard lock(mailbox_.mutex);
  double& average = mailbox_.request_seconds;
  average = average == 0 ? taken : average + kNewest * (taken - average);
}

}  // namespace tidepool::scheduling
