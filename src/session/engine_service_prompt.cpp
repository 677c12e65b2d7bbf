#include "session/engine_service_prompt.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "session/prompt_ids.h"
#include "text/dsml.h"

namespace tidepool {
namespace {

/// Puts a prompt's ids together from pieces of its text and from kept turns.
class PromptBuilder {
 public:
  PromptBuilder(const LoadedModel& model, const ChatPrompt& prompt, std::vector<RequestImagePtr> pictures)
      : model_(model), prompt_(prompt), builder_(std::move(pictures)) {
    for (const PromptRun& run : prompt.runs) {
      if (!run.is_control_token) continue;
      const std::string_view text = std::string_view(prompt.text).substr(run.begin, run.bytes);
      if (!model.tokenizer().find_added_token(text)) continue;
      borders_.insert(run.begin);
      borders_.insert(run.begin + run.bytes);
    }
  }

  /// Whether the ids of the text before and behind `at` do not depend on each other.
  [[nodiscard]] bool is_border(size_t at) const { return borders_.contains(at); }

  /// Encodes the text up to `end`, a border or the end of the text.
  void encode_until(size_t end) {
    if (end <= done_) return;
    ChatPrompt piece;
    piece.text = prompt_.text.substr(done_, end - done_);
    for (; run_ < prompt_.runs.size() && prompt_.runs[run_].begin < end; ++run_) {
      const PromptRun& run = prompt_.runs[run_];
      if (run.begin < done_) continue;  // within a kept turn
      TIDEPOOL_CHECK(run.begin + run.bytes <= end, "a border is where runs meet");
      piece.runs.push_back({run.begin - done_, run.bytes, run.is_control_token});
    }
    PromptIds encoded = encode_prompt(model_.tokenizer(), piece, model_.config().image_token_id);
    builder_.add(encoded);
    for (std::string& token : encoded.missing_control_tokens) {
      std::vector<std::string>& missing = result_.missing_control_tokens;
      if (std::ranges::find(missing, token) == missing.end()) missing.push_back(std::move(token));
    }
    done_ = end;
  }

  /// Puts ids in the place of the text from where it was encoded to, up to `end`.
  void put(const std::vector<int32_t>& ids, size_t end) {
    builder_.add(ids);
    done_ = end;
  }

  /// Of all ids so far. Each is read once, however many turns ask.
  [[nodiscard]] uint64_t fingerprint() {
    fingerprint_.add(builder_.ids().subspan(fingerprinted_));
    fingerprinted_ = builder_.ids().size();
    return fingerprint_.value();
  }
  [[nodiscard]] ServicePrompt take() {
    result_.ids = builder_.take_ids();
    result_.images = builder_.take_images();
    return std::move(result_);
  }

 private:
  const LoadedModel& model_;
  const ChatPrompt& prompt_;
  ImagePromptBuilder builder_;
  std::unordered_set<size_t> borders_;
  size_t done_ = 0;  ///< bytes of the text
  size_t run_ = 0;
  PromptFingerprint fingerprint_;
  size_t fingerprinted_ = 0;  ///< ids
  ServicePrompt result_;
};

/// Puts a kept turn, or a part of one, where `turn` stands.
void put_kept_turn(PromptBuilder& builder, const PromptTurn& turn, const ChatMessage& message, KeptTurns& kept,
                   std::string_view salt) {
  using Part = KeptTurns::Answer::Part;
  if (!builder.is_border(turn.begin) || !builder.is_border(turn.end)) return;
  KeptTurns::Question question;
  question.salt = salt;
  question.turn_text = canonical_turn(message);
  if (question.turn_text.empty()) return;
  builder.encode_until(turn.begin);
  question.has_reasoning = turn.has_reasoning;
  question.reasoning = message.reasoning;
  question.prompt_fingerprint = builder.fingerprint();
  const std::optional<KeptTurns::Answer> answer = kept.find(question);
  if (!answer) return;
  if (answer->part != Part::kWhole && !builder.is_border(turn.body)) return;
  if (answer->part == Part::kBody) builder.encode_until(turn.body);
  builder.put(answer->ids, answer->part == Part::kReasoning ? turn.body : turn.end);
}

}  // namespace

ServicePrompt encode_service_prompt(const LoadedModel& model, ChatRequest& request, KeptTurns& kept,
                                    std::string_view salt, const RequestImageLimits& images) {
  check_chat_request(request);  // before pictures are decoded for nothing
  const std::vector<RequestImagePtr> pictures = take_images(model, request, images);
  const PreparedChat chat = encode_chat_request(request);
  PromptBuilder builder(model, chat.prompt, images_of_prompt(chat.prompt, pictures));
  auto turn = chat.prompt.turns.begin();
  for (const ChatMessage& message : request.messages) {
    if (message.role != ChatRole::kAssistant) continue;
    TIDEPOOL_CHECK(turn != chat.prompt.turns.end(), "each assistant message has its place");
    put_kept_turn(builder, *turn++, message, kept, salt);
  }
  builder.encode_until(chat.prompt.text.size());
  ServicePrompt result = builder.take();
  result.output_start = chat.output_starts_in;
  result.has_tools = chat.has_tools;
  return result;
}

ServicePrompt encode_service_prompt(const LoadedModel& model, const RawPrompt& prompt) {
  ServicePrompt result;
  result.output_start = OutputStart::kContinuation;
  if (const auto* ids = std::get_if<std::vector<int32_t>>(&prompt.content)) {
    const int64_t vocab = model.config().vocab_size;
    for (const int32_t id : *ids) {
      if (id >= 0 && id < vocab) continue;
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("prompt: {} is no token of the model, 0 to {}", id, vocab - 1));
    }
    result.ids = *ids;
  } else {
    result.ids = model.tokenizer().encode(std::get<std::string>(prompt.content));
    const std::optional<int32_t> begin = model.tokenizer().find_added_token(dsml::kBeginOfSentence);
    if (prompt.adds_bos && begin && (result.ids.empty() || result.ids.front() != *begin))
      result.ids.insert(result.ids.begin(), *begin);
  }
  if (result.ids.empty()) throw Error(ErrorCode::kInvalidArgument, "prompt: must not be empty");
  return result;
}

std::vector<int32_t> forced_opening(const Tokenizer& tokenizer) {
  ChatPrompt opening;
  append_template(opening, dsml::kCallsOpening);
  return encode_prompt(tokenizer, opening).ids;
}

std::string last_text(const LoadedModel& model, const ServiceRequest& request) {
  if (const auto* raw = std::get_if<RawPrompt>(&request.prompt)) {
    if (const auto* text = std::get_if<std::string>(&raw->content)) return *text;
    return model.has_tokenizer() ? model.tokenizer().decode(std::get<std::vector<int32_t>>(raw->content)) : "";
  }
  std::string text;
  for (const ContentBlock& block : std::get<ChatRequest>(request.prompt).messages.back().content) {
    text += block.text;
    for (const ContentBlock& inner : block.content)
      text += inner.text;
    text += '\n';
  }
  return text;
}

}  // namespace tidepool
