#include "session/engine_service_output.h"

#include <algorithm>
#include <utility>

#include "session/prompt_ids.h"
#include "text/dsml.h"

namespace tidepool {
namespace {

using Kind = CompletionEvent::Kind;

/// A page of the same. Tables and rules of dashes stay below.
constexpr int64_t kNoticedRepetition = 512;

CompletionEvent content_event(std::string text) {
  CompletionEvent event;
  event.kind = Kind::kContent;
  event.text = std::move(text);
  return event;
}

}  // namespace

ServiceOutput::ServiceOutput(const ServiceOutputPlan& plan) : plan_(plan), reader_(plan.tokenizer, plan.format) {
  if (plan.format.start != OutputStart::kReasoning) body_ = 0;
}

std::vector<CompletionEvent> ServiceOutput::feed(int32_t id, std::optional<FinishReason> finish) {
  std::vector<CompletionEvent> events;
  const bool is_stop_token = finish == FinishReason::kStopToken;
  if (is_stop_token) {
    if (std::ranges::find(plan_.stop_ids, id) != plan_.stop_ids.end()) stop_id_ = id;
    if (!plan_.includes_stop_text || plan_.format.kind != OutputFormat::Kind::kRaw) return events;
  } else {
    ids_.push_back(id);
    repetition_.note_last(ids_);
  }
  events = reader_.feed(id);
  if (reader_.is_reasoning()) {
    ++reasoning_tokens_;
  } else if (!body_ && id == plan_.reasoning_end_id) {
    body_ = ids_.size();
  }
  note(events);
  if (!is_done_ && plan_.repetition_limit > 0 && repetition_.repeated_tokens() >= plan_.repetition_limit)
    is_done_ = has_reached_repetition_limit_ = true;
  return events;
}

int64_t ServiceOutput::repeated_tokens() const {
  const int64_t tokens = repetition_.repeated_tokens();
  return tokens >= kNoticedRepetition || has_reached_repetition_limit_ ? tokens : 0;
}

std::vector<CompletionEvent> ServiceOutput::finish() {
  std::vector<CompletionEvent> events;
  if (is_over_) return events;
  events = reader_.finish();
  note(events);
  is_over_ = true;
  return events;
}

/// Sees to it that events end where the request wants them to, and keeps what is needed later.
void ServiceOutput::note(std::vector<CompletionEvent>& events) {
  const bool had_stopped = is_done_;
  if (!plan_.allows_parallel_calls) end_after_first_call(events);
  if (!had_stopped && reader_.stop_index() && plan_.includes_stop_text) add_stop_text(events);
  is_done_ = is_done_ || reader_.is_done();
  if (plan_.format.kind == OutputFormat::Kind::kChat) completion_.add(events);
}

void ServiceOutput::add_stop_text(std::vector<CompletionEvent>& events) const {
  const auto stop = std::ranges::find(events, Kind::kStop, &CompletionEvent::kind);
  events.insert(stop, content_event(plan_.format.stops[*reader_.stop_index()]));
}

void ServiceOutput::end_after_first_call(std::vector<CompletionEvent>& events) {
  const auto end = std::ranges::find(events, Kind::kToolCallEnd, &CompletionEvent::kind);
  if (end == events.end()) return;
  // What may follow in these events belongs to the next call: such a token cannot be sent back to the model either.
  ends_in_call_ = !reader_.is_done() && end + 1 == events.end();
  events.erase(end + 1, events.end());
  is_done_ = true;
  is_over_ = true;
}

ServiceFinish ServiceOutput::result(const SequenceListener::ChoiceEnd& end) const {
  ServiceFinish finish;
  finish.reason = reader_.stop_index() ? FinishReason::kStopText : end.reason;
  if (has_reached_repetition_limit_) finish.reason = FinishReason::kMaxTokens;
  finish.repeated_tokens = repeated_tokens();
  finish.stop_index = reader_.stop_index();
  finish.stop_id = stop_id_;
  finish.has_calls = std::ranges::any_of(completion_.calls, &Completion::Call::is_complete);
  finish.usage.completion_tokens = end.tokens;
  finish.usage.reasoning_tokens = reasoning_tokens_;
  finish.usage.drafts = end.drafts;
  return finish;
}

std::optional<ServiceOutput::Kept> ServiceOutput::kept_turn() const {
  const bool is_whole_turn =
      plan_.format.kind == OutputFormat::Kind::kChat && plan_.format.start != OutputStart::kContinuation;
  if (!is_whole_turn || reader_.is_reasoning()) return std::nullopt;
  if (!std::ranges::all_of(completion_.calls, &Completion::Call::is_complete)) return std::nullopt;
  // A control token that did not show, the end of the turn under ignore_eos say, must not come back as history.
  if (std::ranges::any_of(ids_, [this](int32_t id) { return reader_.is_hidden(id); })) return std::nullopt;
  Kept kept;
  kept.text = canonical_turn(completion_);
  if (kept.text.empty()) return std::nullopt;
  kept.turn.ids = plan_.forced_opening;
  kept.turn.ids.insert(kept.turn.ids.end(), ids_.begin(), ids_.end());
  if (ends_in_call_) {
    // The call's closing mark is the last token; the rest of the block follows as the model would have written it.
    ChatPrompt rest;
    append_plain(rest, " invoke>\n");
    append_template(rest, dsml::kCallsEnd);
    const std::vector<int32_t> ids = encode_prompt(*plan_.tokenizer, rest).ids;
    kept.turn.ids.insert(kept.turn.ids.end(), ids.begin(), ids.end());
  }
  kept.turn.has_reasoning = plan_.format.start == OutputStart::kReasoning;
  kept.turn.body = body_;
  kept.turn.is_cut = reader_.stop_index().has_value() || (!plan_.allows_parallel_calls && is_done_ && !ends_in_call_ &&
                                                          !completion_.calls.empty() && !reader_.is_done());
  kept.turn.reasoning = completion_.reasoning;
  kept.turn.prompt_fingerprint = plan_.prompt_fingerprint;
  return kept;
}

}  // namespace tidepool
