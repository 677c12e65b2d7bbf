#include "session/conversation.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "session/prompt_ids.h"

namespace tidepool {
namespace {

/// How many tokens of `prompt` the state can serve; nothing when it would have to go back further than it can. The last
/// token of a prompt is always read, as the answer begins with its logits.
std::optional<int64_t> reusable_tokens(const std::optional<SequenceState>& state, std::span<const int32_t> prompt) {
  if (!state) return std::nullopt;
  const std::span<const InputToken> tokens = state->tokens();
  const size_t most = std::min(tokens.size(), prompt.size() - 1);
  size_t common = 0;
  while (common < most && tokens[common] == InputToken{prompt[common], false})
    ++common;
  const auto length = static_cast<int64_t>(common);
  if (length == 0 || !state->can_rollback(length)) return std::nullopt;
  return length;
}

std::vector<InputToken> to_input(std::span<const int32_t> ids) {
  std::vector<InputToken> tokens;
  tokens.reserve(ids.size());
  for (const int32_t id : ids)
    tokens.push_back({id, false});
  return tokens;
}

}  // namespace

void Conversation::reset() {
  live_.reset();
  prompt_state_.reset();
}

/// The state that serves most of the prompt, taken back to where they part: that of the last turn's end (the answer is
/// part of the new prompt as it was written), of its prompt (the answer is there in another form, without its
/// reasoning, say), or a new one.
SequenceState Conversation::take_state(std::span<const int32_t> prompt) {
  const std::optional<int64_t> from_live = reusable_tokens(live_, prompt);
  const std::optional<int64_t> from_prompt = reusable_tokens(prompt_state_, prompt);
  if (!from_live && !from_prompt) return model_.model().new_sequence();
  const bool takes_live = from_live.value_or(0) >= from_prompt.value_or(0);
  SequenceState state = takes_live ? std::move(*std::exchange(live_, std::nullopt)) : prompt_state_->fork();
  state.rollback(takes_live ? *from_live : *from_prompt);
  return state;
}

TurnResult Conversation::run(const TurnRequest& request, const TurnListener& listener, const std::stop_token& stop) {
  if (request.prompt.empty()) throw Error(ErrorCode::kInvalidArgument, "the prompt is empty; give at least one token");
  // Whatever goes wrong on the way, no half-written state is left behind.
  SequenceState state = take_state(request.prompt);
  live_.reset();
  TurnResult result;
  result.prompt_tokens = request.prompt.size();
  result.reused_tokens = static_cast<size_t>(state.length());
  Generator generator({model_.model(), model_.runtime(), arena_}, state, request.generation);
  const std::vector<InputToken> fresh =
      to_input(std::span(request.prompt).subspan(static_cast<size_t>(state.length())));
  if (generator.read_prompt(fresh, listener.on_prompt, stop)) {
    prompt_state_ = state.fork();
    generate(generator, request, listener, stop, result);
  } else {
    result.finish = FinishReason::kCancelled;
  }
  live_ = std::move(state);
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
  report(reader.finish());
  result.stop_index = reader.stop_index();
  result.finish = result.stop_index ? FinishReason::kStopText : *finish;
}

TurnRequest make_chat_turn(const LoadedModel& model, const ChatRequest& request, std::vector<std::string>& missing) {
  const PreparedChat chat = encode_chat_request(request);
  PromptIds prompt = encode_prompt(model.tokenizer(), chat.prompt);
  missing.insert(missing.end(), prompt.missing_control_tokens.begin(), prompt.missing_control_tokens.end());
  TurnRequest turn;
  turn.prompt = std::move(prompt.ids);
  turn.output.kind = OutputFormat::Kind::kChat;
  turn.output.start = chat.output_starts_in;
  turn.output.has_tools = chat.has_tools;
  turn.generation.stop_ids = model.stop_ids();
  return turn;
}

}  // namespace tidepool
