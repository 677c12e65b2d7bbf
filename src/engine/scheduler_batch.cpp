#include <algorithm>
#include <utility>

#include "engine/scheduler_internal.h"

namespace tidepool::scheduling {

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
      entry.decode_rows = static_cast<int64_t>(choice.speculation.rows());
      entry.priority = job->request.priority;
      entry.last_service = choice.last_service;
      entry.arrival = job->arrival;
      entries.push_back(entry);
      rows.push_back({job, index});
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
  propose_drafts();
  const std::vector<Row> rows = prepare_rows(plan());
  if (rows.empty()) return;  // those that were planned have failed
  const Arena::Scope scope(arena_);
  const Clock::time_point begin = now();
  Span2d<const float> logits;
  try {
    logits = run_rows(rows);
  } catch (const Error& error) {
    // The sequences hold positions that were not computed; none can go on.
    for (const Row& row : rows)
      if (row.job->stage != Job::Stage::kEnded) end_job(*row.job, error);
    return;
  }
  const ForwardRecord record = note_forward(rows, std::chrono::duration<double>(now() - begin).count());
  std::vector<Draw> draws = note_rows(rows);
  draw_all(draws, logits);
  note_drafts(draws, record);
  for (const Draw& draw : draws)
    deliver(draw);
}

/// What the rows bring to the forward call. One whose picture cannot be had fails alone.
std::vector<Loop::Row> Loop::prepare_rows(std::vector<Row> planned) {
  std::vector<Row> rows;
  for (Row& row : planned) {
    Choice& choice = row.job->choices[row.choice];
    if (row.job->stage == Job::Stage::kWriting) {
      row.step = choice.speculation.begin(*choice.state, *std::exchange(choice.last_token, std::nullopt));
    } else if (ImageRowSource* images = row.job->request.image_rows.get()) {
      try {
        row.image_rows = images->rows(choice.state->length(), choice.state->length() + row.tokens);
      } catch (const Error& error) {
        end_job(*row.job, error);
        continue;
      }
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

/// Logits in the order of the rows: for each row of a step, and for the end of a prompt.
Span2d<const float> Loop::run_rows(const std::vector<Row>& rows) {
  std::vector<ForwardRequest> requests;
  requests.reserve(rows.size());
  for (const Row& row : rows) {
    SequenceState& state = *row.job->choices[row.choice].state;
    ForwardRequest request;
    request.state = &state;
    request.keeps_draft_rows = keeps_draft_rows(*row.job, rows.size());
    if (row.job->stage == Job::Stage::kReading) {
      const auto begin = static_cast<size_t>(state.length());
      request.tokens = std::span(row.job->request.prompt).subspan(begin, static_cast<size_t>(row.tokens));
      request.decoder_from = row.job->decoder_from;
      request.images = row.image_rows;
      request.logits_rows = state.length() + row.tokens == row.job->prompt_length() ? 1 : 0;
    } else {
      request.tokens = row.step;
      request.decoder_from = state.length();
      request.logits_rows = row.step.size();
    }
    requests.push_back(request);
  }
  return forward(engine_.model, engine_.runtime, arena_, requests);
}

ForwardRecord Loop::note_forward(const std::vector<Row>& rows, double seconds) {
  ForwardRecord record;
  record.seconds = seconds;
  for (const Row& row : rows)
    (row.job->stage == Job::Stage::kReading ? record.prompt_tokens : record.decode_rows) += row.tokens;
  budget_.note(record.prompt_tokens, record.decode_rows, seconds);
  ++forward_calls_;
  return record;
}

/// What the rows have done for their jobs, and the tokens that can be drawn now.
std::vector<Loop::Draw> Loop::note_rows(const std::vector<Row>& rows) {
  std::vector<Draw> draws;
  size_t logits_row = 0;
  for (const Row& row : rows) {
    Job& job = *row.job;
    if (job.stage == Job::Stage::kWriting) {
      draws.push_back({row.job, row.choice, logits_row});
      logits_row += row.step.size();
      continue;
    }
    const int64_t done = job.choices.front().state->length();
    job.gate.call([&](SequenceListener& listener) { listener.on_prompt(done, job.prompt_length()); });
    if (done < job.prompt_length()) {
      publish(job, job.choices.front());
      continue;
    }
    note_read_prompt(job);
    for (size_t choice = 0; choice < job.choices.size(); ++choice)
      draws.push_back({row.job, choice, logits_row});
    ++logits_row;
  }
  return draws;
}

/// Lets others find what a sequence has computed by now, when that is much.
void Loop::publish(Job& job, Choice& choice) const {
  const auto choices = static_cast<int64_t>(job.choices.size());
  const int64_t length = choice.state->length();
  if (engine_.cache == nullptr || length < choice.published + std::max(kPublishEvery / choices, kBlockTokens)) return;
  engine_.cache->publish(*choice.state, job.request.images, job.request.cache_salt, job.reserved());
  choice.published = length;
}

/// The prompt is read: from here on each choice has a sequence of its own.
void Loop::note_read_prompt(Job& job) {
  SequenceState& state = *job.choices.front().state;
  if (engine_.cache != nullptr)
    engine_.cache->snapshot(state, job.request.images, job.request.cache_salt, job.reserved());
  job.request.image_rows.reset();  // and the pictures with it
  job.choices.front().published = job.prompt_length();
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
    job.choices.back().published = job.prompt_length();
  }
}

/// Choices are independent of each other, so they are spread over the threads.
void Loop::draw_all(std::vector<Draw>& draws, Span2d<const float> logits) {
  const auto draw_one = [&](size_t index, size_t worker) { take_steps(draws[index], samplers_[worker], logits); };
  if (draws.size() == 1) {
    draw_one(0, 0);
  } else if (!draws.empty()) {
    engine_.runtime.pool.run(draws.size(), draw_one);
  }
}

/// Takes the tokens of a choice that this call's logits give: one, and one more for each draft that stands.
void Loop::take_steps(Draw& draw, Sampler& sampler, Span2d<const float> logits) {
  Choice& choice = draw.job->choices[draw.choice];
  Speculation& speculation = choice.speculation;
  try {
    if (!speculation.is_under_way()) {  // the end of the prompt
      draw.steps.push_back(choice.continuation.take(sampler, logits.row(draw.logits_row), choice.state->length()));
      return;
    }
    do {
      const std::span<const float> row = logits.row(draw.logits_row + speculation.row());
      draw.steps.push_back(speculation.take(choice.continuation, sampler, row));
    } while (speculation.goes_on());
    draw.drafted = speculation.rows() - 1;
    draw.survival.assign(speculation.drafts().survival().begin(), speculation.drafts().survival().end());
    draw.accepted = speculation.settle(*choice.state, choice.draft_counts);
  } catch (const Error& error) {
    draw.error = error;
  }
}

void Loop::deliver(const Draw& draw) {
  Job& job = *draw.job;
  for (const GenerationStep& step : draw.steps) {
    if (job.stage == Job::Stage::kEnded) return;  // another choice of it has failed
    const std::optional<FinishReason> finish = deliver_step(job, draw.choice, step);
    if (!finish) continue;
    // Drafts behind the token that ended it are no part of the output. (The state lacks the last token anyway.)
    Choice& choice = job.choices[draw.choice];
    const int64_t length = job.prompt_length() + choice.delivered - 1;
    if (length < choice.state->length()) choice.state->rollback(length);
    end_choice(job, draw.choice, *finish);
    return;
  }
  if (job.stage == Job::Stage::kEnded) return;
  if (draw.error) return end_job(job, draw.error);
  publish(job, job.choices[draw.choice]);
}

/// Tells the listener of one token. Returns why it is the choice's last, if it is.
std::optional<FinishReason> Loop::deliver_step(Job& job, size_t index, const GenerationStep& step) {
  Choice& choice = job.choices[index];
  choice.last_token = step.token->id;
  ++choice.delivered;
  if (!job.first_token_at) job.first_token_at = now();
  auto verdict = SequenceListener::Verdict::kGoOn;
  job.gate.call([&](SequenceListener& listener) { verdict = listener.on_token(index, *step.token, step.finish); });
  if (verdict == SequenceListener::Verdict::kEnough && step.finish != FinishReason::kStopToken)
    return FinishReason::kStopText;
  return step.finish;
}

}  // namespace tidepool::scheduling
