#include <algorithm>

#include "base/log.h"
#include "engine/draft_profile.h"
#include "engine/scheduler_internal.h"

namespace tidepool::scheduling {

/// Measures what drafts cost on this machine, when that decides about them. Before the scheduler's thread starts, so
/// that whoever makes the scheduler hears of a model that cannot draft.
void Loop::start_drafting() {
  const bool is_auto = options_.drafts.mode == DraftOptions::Mode::kAuto;
  if (options_.drafts.mode == DraftOptions::Mode::kOff) return;
  if (is_auto && engine_.model.draft_head() == nullptr) return;
  drafter_.emplace(engine_.model, engine_.runtime, draft_arena_);
  if (!is_auto) return;
  try {
    planner_.emplace(profile_drafts(engine_.model, engine_.runtime, draft_arena_, steady_draft_clock(),
                                    {.sequences_max = options_.max_num_seqs}));
  } catch (const Error& error) {
    log_warning("nothing is drafted, as the draft head fails: {}", error.what());
    drafter_.reset();
  }
}

/// Those whose next step may be drafted. Which they are must not depend on neighbours, or a result would: drafts leave
/// greedy outputs alone, but change which tokens others draw.
std::vector<Loop::Row> Loop::choices_to_draft() {
  std::vector<Row> choices;
  for (const JobPtr& job : active_) {
    // While a prompt is read too, rows cost arithmetic and not reading weights: drafts would gain nothing.
    if (planner_ && job->stage == Job::Stage::kReading) return {};
    if (job->stage != Job::Stage::kWriting) continue;
    for (size_t index = 0; index < job->choices.size(); ++index) {
      const Choice& choice = job->choices[index];
      if (choice.is_over() || (planner_ && !choice.continuation.options().sampling.is_greedy())) continue;
      if (choice.speculation.drafts().size() == 0) choices.push_back({job, index});  // else it still waits for its turn
    }
  }
  return choices;
}

/// Whether drafts may follow what is read of a job now. The rows of a prompt are always kept: they cost next to
/// nothing.
bool Loop::keeps_draft_rows(const Job& job, size_t sequences) const {
  if (!drafter_ || !planner_) return drafter_.has_value();
  if (!job.request.generation.sampling.is_greedy()) return false;
  return job.stage == Job::Stage::kReading || planner_->wants_rows(sequences);
}

void Loop::propose_drafts() {
  has_draft_pass_ = false;
  draft_seconds_ = 0;
  if (!drafter_) return;
  const std::vector<Row> choices = choices_to_draft();
  if (choices.empty() || (planner_ && !planner_->wants_drafts(choices.size()))) return;
  std::vector<DraftingRequest> requests;
  for (const Row& row : choices) {
    Choice& choice = row.job->choices[row.choice];
    const size_t limit = drafts_limit(engine_.model, *choice.state, choice.continuation);
    const size_t most = planner_ ? limit : std::min(limit, options_.drafts.length);
    if (most == 0) continue;
    requests.push_back({&*choice.state, &choice.continuation, *choice.last_token, most, &choice.speculation.drafts()});
  }
  if (requests.empty()) return;
  const Clock::time_point begin = now();
  draft_all(requests);
  draft_seconds_ = std::chrono::duration<double>(now() - begin).count();
  has_draft_pass_ = true;
  if (!planner_) return;
  std::vector<std::span<const double>> survival;
  survival.reserve(requests.size());
  for (const DraftingRequest& request : requests)
    survival.push_back(request.drafts->survival());
  const std::vector<size_t> lengths = planner_->choose_lengths(survival);
  for (size_t i = 0; i < requests.size(); ++i)
    requests[i].drafts->shorten(lengths[i]);
}

/// One pass of the head. Drafts are optional: one that they cannot be had for goes on without, and the others are
/// drafted as if it were not there, as what they write must not depend on it.
void Loop::draft_all(std::span<const DraftingRequest> requests) {
  try {
    drafter_->propose(requests);
    return;
  } catch (const Error& error) {
    if (!has_warned_of_drafts_) log_warning("a step goes on without drafts: {}", error.what());
    has_warned_of_drafts_ = true;
  }
  for (const DraftingRequest& request : requests)
    request.drafts->clear();
  if (requests.size() == 1) return;
  for (const DraftingRequest& request : requests)
    draft_all({&request, 1});
}

void Loop::note_drafts(const std::vector<Draw>& draws, const ForwardRecord& record) {
  if (!drafter_) return;
  DraftPlanner::Step step;
  step.sequences = draws.size();
  step.rows = static_cast<size_t>(record.decode_rows);
  step.tokens = 0;
  step.seconds = record.seconds;
  step.draft_seconds = draft_seconds_;
  step.is_drafted = has_draft_pass_;
  for (const Draw& draw : draws) {
    step.tokens += draw.steps.size();
    if (draw.drafted == 0) continue;
    if (planner_) planner_->note_drafts(draw.survival, draw.accepted);
  }
  if (planner_ && record.prompt_tokens == 0 && step.tokens > 0) planner_->note(step);
}

}  // namespace tidepool::scheduling
