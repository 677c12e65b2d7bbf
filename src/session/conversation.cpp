#include "session/conversation.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "engine/prefill.h"
#include "session/prompt_ids.h"

namespace tidepool {
/// Room for all that the turn may come to.
KvCache::Reservation Conversation::reserve(const SequenceState& state, const TurnRequest& request,
                                           int64_t context_max) const {
  const auto prompt = static_cast<int64_t>(request.prompt.size());
  const int64_t answer = std::min(request.generation.max_tokens.value_or(context_max), context_max);
  std::optional<KvCache::Reservation> room = cache_.reserve(state, std::min(prompt + answer, context_max));
  if (room) return std::move(*room);
  throw Error(ErrorCode::kResourceExhausted,
              "the KV of other requests leaves no room for this one; wait until one is over, or raise --kv-ram");
}

/// How a turn drafts. What steps take is learnt as they are made: a profile would take longer than short answers gain.
Generator::Drafting Conversation::drafting(const TurnRequest& request) {
  const DraftOptions& options = request.drafts;
  const bool is_auto = options.mode == DraftOptions::Mode::kAuto;
  if (options.mode == DraftOptions::Mode::kOff || (is_auto && model_.model().draft_head() == nullptr)) return {};
  if (!drafter_) drafter_.emplace(model_.model(), model_.runtime(), arena_);
  if (!is_auto) return {.drafter = &*drafter_, .length = options.length};
  if (options.is_repeatable && !request.generation.sampling.is_greedy()) {
    nominal_planner_ = estimated_draft_planner(model_.model(), DraftPlanner::Costs::kNominal);
    return {.drafter = &*drafter_, .planner = &*nominal_planner_};
  }
  if (!planner_) planner_ = estimated_draft_planner(model_.model(), DraftPlanner::Costs::kMeasured);
  return {.drafter = &*drafter_, .planner = &*planner_};
}

TurnResult Conversation::run(const TurnRequest& request, const TurnListener& listener, const std::stop_token& stop) {
  if (request.prompt.empty()) throw Error(ErrorCode::kInvalidArgument, "the prompt is empty; give at least one token");
  const std::vector<ImageSpan>& images = request.images.spans;
  const std::vector<InputToken> prompt = input_tokens(request.prompt, images);
  KvCache::Query query;
  query.text = {prompt, images};
  set_replay(query, request.generation.replay);
  auto [state, report] = cache_.resume(query);
  TurnResult result;
  result.cache = report;
  Generator generator({model_.model(), model_.runtime(), arena_}, state, request.generation, drafting(request));
  KvCache::Reservation room = reserve(state, request, generator.context_max());
  PromptImageRows image_rows(features_, request.images);
  const bool is_read = generator.read_prompt(std::span(prompt).subspan(static_cast<size_t>(state.length())),
                                             listener.on_prompt, stop, &image_rows);
  cache_.snapshot(state, images, "", &room);
  if (!is_read) {
    result.finish = FinishReason::kCancelled;
    return result;
  }
  generate(generator, request, listener, stop, result);
  cache_.snapshot(state, images, "", &room);
  return result;
}

void Conversation::generate(Generator& generator, const TurnRequest& request, const TurnListener& listener,
                            const std::stop_token& stop, TurnResult& result) {
  OutputReader reader(model_.has_tokenizer() ? &model_.tokenizer() : nullptr, request.output);
  const auto report = [&](const std::vector<CompletionEvent>& events) {
    result.completion.add(events);
    for (const CompletionEvent& event : events)
      if (listener.on_event) listener.on_event(event);
  };
  std::optional<FinishReason> finish;
  while (!finish) {
    const GenerationStep step = generator.next(stop);
    finish = step.finish;
    if (!step.token) break;
    result.tokens.push_back(*step.token);
    if (listener.on_token) listener.on_token(*step.token);
    if (finish == FinishReason::kStopToken) break;
    report(reader.feed(step.token->id));
    if (reader.is_reasoning()) ++result.reasoning_tokens;
    if (reader.is_done()) finish = FinishReason::kStopText;
  }
  generator.end();
  result.drafts = generator.draft_counts();
  report(reader.finish());
  result.stop_index = reader.stop_index();
  result.finish = result.stop_index ? FinishReason::kStopText : *finish;
}

TurnRequest make_chat_turn(const LoadedModel& model, ChatRequest request, std::vector<std::string>& missing) {
  check_chat_request(request);  // before pictures are decoded for nothing
  const std::vector<RequestImagePtr> pictures = take_images(model, request);
  const PreparedChat chat = encode_chat_request(request);
  const PromptIds prompt = encode_prompt(model.tokenizer(), chat.prompt, model.config().image_token_id);
  missing.insert(missing.end(), prompt.missing_control_tokens.begin(), prompt.missing_control_tokens.end());
  ImagePromptBuilder builder(images_of_prompt(chat.prompt, pictures));
  builder.add(prompt);
  TurnRequest turn;
  turn.prompt = builder.take_ids();
  turn.images = builder.take_images();
  turn.output.kind = OutputFormat::Kind::kChat;
  turn.output.start = chat.output_starts_in;
  turn.output.has_tools = chat.has_tools;
  turn.generation.stop_ids = model.stop_ids();
  return turn;
}

}  // namespace tidepool
