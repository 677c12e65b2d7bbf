#include <algorithm>
#include <utility>

#include "base/check.h"
#include "engine/scheduler_internal.h"

namespace tidepool::scheduling {
namespace {

/// How often the blocks of a long prompt are published while it is read: others that begin alike then need not wait for
/// its end, and the keys of the whole text are not hashed for every chunk.
constexpr int64_t kPublishEvery = 32 * kBlockTokens;

}  // namespace

std::vector<Loop::Row> Loop::plan() {
  std::vector<BatchEntry> entries;
  std::vector<Row> rows;
  for (const JobPtr& job : active_) {
    if (job->stage != Job::Stage::kReading && job->stage != Job::Stage::kWriting) continue;
    for (size_t index = 0; index < job->choices.size(); ++index) {
      const Choice& choice = job->choices[index];
      if (choice.is_over()) continue;
      BatchEntry entry;
      if (job->stage == Job::Stage::kReading) entry.prompt_tokens = job->prompt_length() - choice.state->length();
      entry.priority = job->request.priority;
      entry.last_service = choice.last_service;
      entry.arrival = job->arrival;
      entries.push_back(entry);
      rows.push_back({job, index, 0});
    }
  }
  const BatchLimits limits{static_cast<int64_t>(options_.max_num_batched_tokens), budget_.tokens()};
  std::vector<Row> planned;
  for (const BatchPart& part : plan_batch(entries, limits)) {
    Row row = std::move(rows[part.entry]);
    row.tokens = part.tokens;
    row.job->choices[row.choice].last_service = ++services_;
    planned.push_back(std::move(row));
  }
  return planned;
}

void Loop::run_batch() {
  const std::vector<Row> rows = plan();
  TIDEPOOL_CHECK(!rows.empty(), "whoever reads or writes takes part");
  const Arena::Scope scope(arena_);
  const Clock::time_point begin = now();
  Span2d<const float> logits;
  try {
    logits = run_rows(rows);
  } catch (const Error& error) {
    // The sequences hold positions that were not computed; none can go on.
    for (const Row& row : rows)
      if (row.job->stage != Job::Stage::kEnded) end_job(*row.job, RequestRecord::End::kError, error);
    return;
  }
  note_forward(rows, std::chrono::duration<double>(now() - begin).count());
  std::vector<Draw> draws = note_rows(rows);
  draw_all(draws, logits);
  for (const Draw& draw : draws)
    deliver(draw);
}

/// Logits in the order of the rows: one for each that writes or ends its prompt.
Span2d<const float> Loop::run_rows(const std::vector<Row>& rows) {
  std::vector<InputToken> last_tokens;
  last_tokens.reserve(rows.size());  // spans point into it
  std::vector<ForwardRequest> requests;
  requests.reserve(rows.size());
  for (const Row& row : rows) {
    Choice& choice = row.job->choices[row.choice];
    ForwardRequest request;
    request.state = &*choice.state;
    if (row.job->stage == Job::Stage::kReading) {
      const auto begin = static_cast<size_t>(choice.state->length());
      request.tokens = std::span(row.job->request.prompt).subspan(begin, static_cast<size_t>(row.tokens));
      request.decoder_from = row.job->decoder_from;
      if (ImageRowSource* images = row.job->request.image_rows.get())
        request.images = images->rows(choice.state->length(), choice.state->length() + row.tokens);
      request.logits_rows = choice.state->length() + row.tokens == row.job->prompt_length() ? 1 : 0;
    } else {
      last_tokens.push_back({*std::exchange(choice.last_token, std::nullopt), false});
      request.tokens = std::span(last_tokens).last(1);
      request.decoder_from = choice.state->length();
      request.logits_rows = 1;
    }
    requests.push_back(request);
  }
  return forward(engine_.model, engine_.runtime, arena_, requests);
}

void Loop::note_forward(const std::vector<Row>& rows, double seconds) {
  ForwardRecord record;
  record.seconds = seconds;
  for (const Row& row : rows)
    (row.job->stage == Job::Stage::kReading ? record.prompt_tokens : record.decode_rows) += row.tokens;
  budget_.note(record.prompt_tokens, record.decode_rows, seconds);
  ++forward_calls_;
  if (options_.observer) options_.observer->on_forward(record);
}

/// What the rows have done for their jobs, and the tokens that can be drawn now.
std::vector<Loop::Draw> Loop::note_rows(const std::vector<Row>& rows) {
  std::vector<Draw> draws;
  size_t logits_row = 0;
  for (const Row& row : rows) {
    Job& job = *row.job;
    if (job.stage == Job::Stage::kWriting) {
      draws.push_back({row.job, row.choice, logits_row++});
      continue;
    }
    const int64_t done = job.choices.front().state->length();
    job.gate.call([&](SequenceListener& listener) { listener.on_prompt(done, job.prompt_length()); });
    if (done < job.prompt_length()) {
      if (engine_.cache != nullptr && done >= job.published + kPublishEvery) {
        engine_.cache->publish(*job.choices.front().state, job.request.images, job.request.cache_salt, job.reserved());
        job.published = done;
      }
      continue;
    }
    note_read_prompt(job);
    for (size_t choice = 0; choice < job.choices.size(); ++choice)
      draws.push_back({row.job, choice, logits_row});
    ++logits_row;
  }
  return draws;
}

/// The prompt is read: from here on each choice has a sequence of its own.
void Loop::note_read_prompt(Job& job) {
  SequenceState& state = *job.choices.front().state;
  if (engine_.cache != nullptr)
    engine_.cache->snapshot(state, job.request.images, job.request.cache_salt, job.reserved());
  job.stage = Job::Stage::kWriting;
  job.choices.reserve(job.request.choice_count);
  for (size_t index = 1; index < job.request.choice_count; ++index) {
    constexpr uint64_t kSeedMask = (uint64_t{1} << 63) - 1;
    GenerationOptions options = job.request.generation;
    options.sampling.seed = (options.sampling.seed + index) & kSeedMask;
    if (!job.request.constraints.empty()) options.constraint = job.request.constraints[index].get();
    Continuation continuation(engine_.model.config(), std::move(options));
    continuation.add_prompt(job.request.prompt);
    job.choices.emplace_back(job.choices.front().state->fork(), std::move(continuation));
  }
}

/// Draws are independent of each other, so they are spread over the threads.
void Loop::draw_all(std::vector<Draw>& draws, Span2d<const float> logits) {
  const auto draw_one = [&](size_t index, size_t worker) {
    Draw& draw = draws[index];
    Choice& choice = draw.job->choices[draw.choice];
    try {
      draw.step = choice.continuation.take(samplers_[worker], logits.row(draw.logits_row), choice.state->length());
    } catch (const Error& error) {
      draw.error = error;
    }
  };
  if (draws.size() == 1) {
    draw_one(0, 0);
  } else if (!draws.empty()) {
    engine_.runtime.pool.run(draws.size(), draw_one);
  }
}

void Loop::deliver(const Draw& draw) {
  Job& job = *draw.job;
  if (job.stage == Job::Stage::kEnded) return;  // another choice of it has failed
  if (draw.error) {
    end_job(job, RequestRecord::End::kError, draw.error);
    return;
  }
  Choice& choice = job.choices[draw.choice];
  const SampledToken& token = *draw.step->token;
  choice.last_token = token.id;
  note_token_times(job, choice);
  std::optional<FinishReason> finish = draw.step->finish;
  auto verdict = SequenceListener::Verdict::kGoOn;
  job.gate.call(
      [&](SequenceListener& listener) { verdict = listener.on_token(draw.choice, token, draw.step->finish); });
  if (verdict == SequenceListener::Verdict::kEnough && finish != FinishReason::kStopToken)
    finish = FinishReason::kStopText;
  if (finish) end_choice(job, draw.choice, *finish);
}

void Loop::note_token_times(Job& job, Choice& choice) {
  const auto seconds = [](Clock::duration duration) { return std::chrono::duration<double>(duration).count(); };
  const Clock::time_point at = now();
  if (!job.first_token_at) {
    job.first_token_at = at;
    if (options_.observer) options_.observer->on_first_token(seconds(at - job.arrived_at));
  }
  if (choice.continuation.count() > 1 && options_.observer)
    options_.observer->on_token_gap(seconds(at - choice.last_token_at));
  choice.last_token_at = at;
}

}  // namespace tidepool::scheduling
